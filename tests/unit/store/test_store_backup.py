"""Copies of a store that is in use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from threading import Semaphore

import pytest

from bullpen.errors import Gone, StorageFailed, TooManyRequests, Unavailable
from bullpen.store import copies
from bullpen.store.base import ABSENT
from bullpen.store.ledger import Check
from support.faulty import Disk, broken
from support.mounts import tmpfs
from support.sqlite_helpers import KEY, fill, opened, overwrite, query, state


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many steps also for a small database."""
    monkeypatch.setattr(copies, "COPY_PAGES", 2)


class Gate:
    """Lets a copy take as many steps as the test says."""

    def __init__(self) -> None:
        self._steps = Semaphore(0)

    def wait(self) -> None:
        assert self._steps.acquire(timeout=10)

    def allow(self, steps: int) -> None:
        self._steps.release(steps)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    step = copies.Copy.step

    def gated(copy: copies.Copy) -> bool:
        gate.wait()
        return step(copy)

    monkeypatch.setattr(copies.Copy, "step", gated)
    return gate


async def test_a_backup_is_a_store_like_the_one_it_was_made_of_without_its_past(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "store.db") as store:
        await fill(store, 300, size=1000)
        await overwrite(store, 20)
        await store.delete(KEY, lambda _: b"", expect=320)
        assert await store.backup(tmp_path / "backup.db") == store.revision == 321
        before = (state(store), store.revision)
    async with opened(tmp_path / "backup.db") as store:
        assert (state(store), store.revision) == before
        assert store.oldest == 321
        with pytest.raises(Gone):
            store.watch("", since=320)


async def test_a_backup_takes_no_more_room_than_what_there_is(tmp_path: Path) -> None:
    """Of a busy little lab the history is nearly everything; two dozen backups of it add up."""
    async with opened(tmp_path / "store.db") as store:
        await fill(store, 10, size=1000)
        small = await store.backup(tmp_path / "small.db")
        await overwrite(store, 500, size=10_000)
        assert await store.backup(tmp_path / "backup.db") == small + 500
    assert query(tmp_path / "backup.db", "SELECT count(*) FROM log") == [(11,)]
    sizes = {name: (tmp_path / name).stat().st_size for name in ("small.db", "backup.db")}
    assert sizes["backup.db"] <= sizes["small.db"] + 3 * 8192


async def test_an_empty_store_can_be_backed_up(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        assert await store.backup(tmp_path / "backup.db") == 0
    async with opened(tmp_path / "backup.db") as store:
        assert state(store) == ()


async def test_a_backup_made_while_writing_is_one_consistent_state(
    tmp_path: Path, gate: Gate
) -> None:
    """One step between two commits: nobody waits for the copy, and it misses nothing."""
    async with opened(tmp_path / "store.db") as store:
        await fill(store, 300, size=1000)
        async with asyncio.TaskGroup() as group:
            backup = group.create_task(store.backup(tmp_path / "backup.db"))
            for number in range(10):
                first = store.get("lab/x/y/000000")
                assert first is not None
                writes = [  # to the first page, to the last, and behind it
                    store.put(first.key, lambda _: b"early", expect=first.revision),
                    store.put(f"lab/x/y/{299 - number:06}", lambda _: b"", expect=300 - number),
                    store.put(f"lab/x/z/{number}", lambda _: b"new", expect=ABSENT),
                ]
                await asyncio.sleep(0)
                gate.allow(1)
                await asyncio.gather(*writes)
                assert not backup.done()
            gate.allow(1000)
        copied = backup.result()
        assert copied == store.revision == 330
        expected = state(store)
    async with opened(tmp_path / "backup.db") as store:
        assert (state(store), store.revision) == (expected, copied)


async def test_a_backup_replaces_the_one_before_and_leaves_nothing_else(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        for revision in (1, 2):
            await overwrite(store, 1)
            assert await store.backup(tmp_path / "backup.db") == revision
    assert query(tmp_path / "backup.db", "SELECT max(revision) FROM log") == [(2,)]
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"store.db", "store.db.lock", "backup.db"}


async def test_a_backup_and_its_name_are_on_the_disk_when_it_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def note(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        sync(handle)

    async with opened(tmp_path / "store.db") as store:
        await overwrite(store, 1)
        monkeypatch.setattr(os, "fsync", note)
        await store.backup(tmp_path / "backup.db")
    assert synced == ["backup.db.partial1", tmp_path.name]


async def test_a_backup_that_does_not_fit_fails_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        await fill(store, 300, size=4000)
        with tmpfs(tmp_path / "disk", megabytes=1) as disk:
            (disk.path / "backup.db").write_text("the one before")
            with pytest.raises(StorageFailed, match="FullError"):
                await store.backup(disk.path / "backup.db")
            assert [file.name for file in disk.path.iterdir()] == ["backup.db"]
            assert (disk.path / "backup.db").read_text() == "the one before"
        await overwrite(store, 1)


async def test_a_backup_into_nowhere_fails_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        with pytest.raises(StorageFailed, match="No such file"):
            await store.backup(tmp_path / "missing" / "backup.db")
        await overwrite(store, 1)
        assert await store.backup(tmp_path / "backup.db") == 1


async def test_a_backup_of_what_cannot_be_read_fails_and_leaves_nothing(tmp_path: Path) -> None:
    disk = Disk("unreadable")
    async with opened(tmp_path / "store.db", vfs=disk.name) as store:
        await fill(store, 2000, size=4000)
        disk.before_read = broken
        with pytest.raises(StorageFailed, match="the backup was not made"):
            await store.backup(tmp_path / "backup.db")
        disk.heal()
        assert not list(tmp_path.glob("backup*"))
        assert await store.backup(tmp_path / "backup.db") == 2000
    disk.unregister()


async def test_a_copy_that_is_not_sound_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = copies.publish

    def spoil(copy: Path, target: Path, check: Check) -> int:
        content = bytearray(copy.read_bytes())
        content[8192 * 3 : 8192 * 4] = bytes(8192)
        copy.write_bytes(content)
        return publish(copy, target, check)

    monkeypatch.setattr(copies, "publish", spoil)
    async with opened(tmp_path / "store.db") as store:
        await fill(store, 300, size=1000)
        with pytest.raises(StorageFailed, match="is damaged"):
            await store.backup(tmp_path / "backup.db")
    assert not list(tmp_path.glob("backup*"))


async def test_one_backup_at_a_time(tmp_path: Path, gate: Gate) -> None:
    async with opened(tmp_path / "store.db") as store:
        await fill(store, 300, size=1000)
        async with asyncio.TaskGroup() as group:
            group.create_task(store.backup(tmp_path / "first.db"))
            await asyncio.sleep(0)
            with pytest.raises(TooManyRequests):
                await store.backup(tmp_path / "second.db")
            gate.allow(1000)
        assert await store.backup(tmp_path / "second.db") == 300


@pytest.mark.parametrize("steps", [1, 2, 1000])
async def test_a_backup_that_is_given_up_leaves_nothing_and_makes_room(
    tmp_path: Path, gate: Gate, steps: int
) -> None:
    async with opened(tmp_path / "store.db") as store:
        await fill(store, 300, size=1000)
        gate.allow(steps)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await store.backup(tmp_path / "given-up.db")
        gate.allow(1000)
        assert await store.backup(tmp_path / "backup.db") == 300
    assert not list(tmp_path.glob("given-up*"))


async def test_closing_gives_up_a_backup_under_way(tmp_path: Path, gate: Gate) -> None:
    async with opened(tmp_path / "store.db") as store:
        await fill(store, 300, size=1000)
        async with asyncio.TaskGroup() as group:
            backup = group.create_task(_error(store.backup(tmp_path / "backup.db")))
            await asyncio.sleep(0)
            gate.allow(2)
            await store.close()
        assert isinstance(backup.result(), Unavailable)
        with pytest.raises(Unavailable):
            await store.backup(tmp_path / "backup.db")
    assert not list(tmp_path.glob("backup*"))


async def _error(backup: Coroutine[None, None, int]) -> BaseException | None:
    try:
        await backup
    except Unavailable as error:
        return error
    return None
