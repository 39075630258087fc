"""When the disk refuses: nothing is acknowledged, nothing is lost, and it passes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from bullpen.errors import StorageFailed, Unavailable
from bullpen.store import sqlite as database_module
from bullpen.store.base import ABSENT, Entry
from bullpen.store.history import Limits
from bullpen.store.sqlite import Database
from support.faulty import Disk, broken, full
from support.mounts import tmpfs
from support.sqlite_helpers import KEY, fill, opened, overwrite, state

_numbers = itertools.count()


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk(f"faulty{next(_numbers)}")
    yield disk
    disk.unregister()


async def outcomes(writes: list[Awaitable[Entry]]) -> list[Entry | BaseException]:
    return await asyncio.gather(*writes, return_exceptions=True)


@pytest.mark.parametrize(
    ("when", "fault", "says"),
    [
        pytest.param("before_write", full, "no space for wal", id="the disk is full"),
        pytest.param("before_write", broken, "cannot reach wal", id="the disk fails to write"),
        pytest.param("before_sync", broken, "cannot reach wal", id="the disk fails to sync"),
    ],
)
async def test_a_failed_commit_fails_its_writes_and_the_store_recovers(
    tmp_path: Path, disk: Disk, when: str, fault: Callable[[str], None], says: str
) -> None:
    path = tmp_path / "store.db"
    async with opened(path, vfs=disk.name) as store:
        await fill(store, 3)
        watch = store.watch("", since=3)
        before = state(store)
        setattr(disk, when, fault)
        for _ in range(3):
            with pytest.raises(StorageFailed, match=says):
                await store.put(KEY, lambda _: b"lost", expect=ABSENT)
            assert store.get(KEY) is None
            assert store.head(KEY) is None
            assert (state(store), store.revision, watch.position) == (before, 3, 3)
        disk.heal()
        entry = await store.put(KEY, lambda _: b"kept", expect=ABSENT)
        assert [change.value for change in await watch.next()] == [b"kept"]
    async with opened(path) as store:
        assert state(store) == (entry, *before)
        assert store.revision == entry.revision


async def test_a_revision_somebody_may_have_seen_is_not_given_out_again(
    tmp_path: Path, disk: Disk
) -> None:
    async with opened(tmp_path / "store.db", vfs=disk.name) as store:
        disk.before_sync = broken
        write = store.put(KEY, lambda _: b"lost", expect=ABSENT)
        head = store.head(KEY)
        assert head is not None
        await outcomes([write])
        disk.heal()
        assert (await store.put(KEY, lambda _: b"kept", expect=ABSENT)).revision > head.revision


async def test_everything_accepted_behind_a_failed_write_fails_with_it(
    tmp_path: Path, disk: Disk
) -> None:
    """The first batch fails while a second is queued and a third not even submitted."""
    failing, proceed = Event(), Event()

    def fail_when_told(kind: str) -> None:
        failing.set()
        proceed.wait(10)
        disk.heal()
        broken(kind)

    async with opened(tmp_path / "store.db", vfs=disk.name) as store:
        await overwrite(store, 1)
        disk.before_sync = fail_when_told
        writes = [store.put(KEY, lambda _: b"first", expect=1)]
        await asyncio.to_thread(failing.wait, 10)
        writes.append(store.put(KEY, lambda _: b"queued", expect=2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        writes.append(store.put("lab/x/y/z", lambda _: b"unsubmitted", expect=ABSENT))
        proceed.set()
        assert [type(outcome) for outcome in await outcomes(writes)] == [StorageFailed] * 3
        assert store.head(KEY) == store.get(KEY)
        assert store.revision == 1
        assert (await store.put(KEY, lambda _: b"after", expect=1)).revision == 5


async def test_a_write_accepted_just_before_the_failure_is_heard_of_fails_too(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not be submitted afterwards, as if it built on nothing."""
    loop = asyncio.get_running_loop()
    post, posted = loop.call_soon_threadsafe, Event()

    def post_and_tell(*arguments: Any) -> None:
        post(*arguments)
        posted.set()

    async with opened(tmp_path / "store.db", vfs=disk.name) as store:
        monkeypatch.setattr(loop, "call_soon_threadsafe", post_and_tell)
        disk.before_write = full
        writes = [store.put(KEY, lambda _: b"first", expect=ABSENT)]
        await asyncio.sleep(0)
        posted.wait(10)
        disk.heal()
        writes.append(store.put(KEY, lambda _: b"second", expect=1))
        assert [type(outcome) for outcome in await outcomes(writes)] == [StorageFailed] * 2
        await overwrite(store, 1, key="lab/x/y/z")
        assert [entry.key for entry in state(store)] == ["lab/x/y/z"]


async def test_failed_writes_make_room_for_others(tmp_path: Path, disk: Disk) -> None:
    limits = Limits(pending_count_max=1, pending_bytes_max=10)
    async with opened(tmp_path / "store.db", limits, vfs=disk.name) as store:
        disk.before_write = full
        with pytest.raises(StorageFailed):
            await overwrite(store, 1, size=10)
        disk.heal()
        await overwrite(store, 1, size=10)


async def test_a_value_the_database_refuses_fails_its_commit_and_no_other(tmp_path: Path) -> None:
    """Unlike a failing disk, this leaves a transaction open for us to end."""
    not_bytes: Any = "text"
    async with opened(tmp_path / "store.db") as store:
        await overwrite(store, 1)
        with pytest.raises(StorageFailed, match="cannot store TEXT value"):
            await store.put(KEY, lambda _: not_bytes, expect=1)
        await overwrite(store, 1)
        assert len(await store.watch("", since=0).next()) == 2


async def test_what_was_committed_before_a_failure_stays_acknowledged(
    tmp_path: Path, disk: Disk
) -> None:
    path = tmp_path / "store.db"
    async with opened(path, vfs=disk.name) as store:
        good = store.put(KEY, lambda _: b"good", expect=ABSENT)
        await good
        disk.before_write = full
        assert isinstance(
            (await outcomes([store.put(KEY, lambda _: b"bad", expect=1)]))[0], Exception
        )
    async with opened(path) as store:
        assert state(store) == (await good,)


async def test_a_lasting_failure_is_logged_once_and_so_is_its_end(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="bullpen")
    async with opened(tmp_path / "store.db", vfs=disk.name) as store:
        disk.before_write = full
        for _ in range(5):
            with pytest.raises(StorageFailed):
                await overwrite(store, 1)
        disk.heal()
        await overwrite(store, 5)
    assert [record.message for record in caplog.records] == [
        "commits fail",
        "commits succeed again",
    ]


async def test_a_write_nobody_waits_for_fails_quietly(tmp_path: Path, disk: Disk) -> None:
    async with opened(tmp_path / "store.db", vfs=disk.name) as store:
        disk.before_write = full
        waiting = asyncio.ensure_future(store.put(KEY, lambda _: b"", expect=ABSENT))
        waiting.cancel()
        with pytest.raises(StorageFailed):
            await store.put("lab/x/y/z", lambda _: b"", expect=ABSENT)


async def test_closing_on_a_broken_disk_still_closes(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "store.db"
    async with opened(path, vfs=disk.name) as store:
        await fill(store, 3)
        disk.before_write = full
        write = store.put(KEY, lambda _: b"lost", expect=ABSENT)
        await store.close()
        assert isinstance((await outcomes([write]))[0], StorageFailed)
        with pytest.raises(Unavailable):
            store.put(KEY, lambda _: b"", expect=ABSENT)
    disk.heal()
    async with opened(path) as store:
        assert len(state(store)) == 3


async def test_a_checkpoint_that_fails_loses_nothing_and_is_tried_again(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database_module, "CHECKPOINT_PAGES", 10)
    path = tmp_path / "store.db"
    wal = path.with_name("store.db-wal")
    async with opened(path, vfs=disk.name) as store:

        def database_only(kind: str) -> None:
            if kind == "db":
                broken(kind)

        disk.before_write = database_only
        await overwrite(store, 60, size=4000)
        assert [record.message for record in caplog.records] == ["checkpoints fail"]
        assert wal.stat().st_size > 60 * 8192
        disk.heal()
        with caplog.at_level("INFO"):
            await overwrite(store, 60, size=4000)
        assert caplog.records[-1].message == "checkpoints succeed again"
        assert store.revision == 120
        before = state(store)
    async with opened(path) as store:
        assert state(store) == before


async def test_history_is_still_cleared_out_after_commits_failed(
    tmp_path: Path, disk: Disk
) -> None:
    path = tmp_path / "store.db"
    limits = Limits(history_count_max=2)
    async with opened(path, limits, vfs=disk.name) as store:
        for _ in range(20):
            await overwrite(store, 1)
            disk.before_write = full
            with pytest.raises(StorageFailed):
                await overwrite(store, 1)
            disk.heal()
        before = (state(store), store.revision, store.oldest)
    async with opened(path, limits) as store:
        assert (state(store), store.revision, store.oldest) == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_bug_in_the_writing_thread_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(database: Database, forgotten: object) -> None:
        raise ZeroDivisionError

    path = tmp_path / "store.db"
    async with opened(path) as store:
        await overwrite(store, 1)
        watch = store.watch("", since=1)
        monkeypatch.setattr(Database, "forget", bug)
        with pytest.raises(StorageFailed):
            await overwrite(store, 1)
        with pytest.raises(Unavailable):
            await overwrite(store, 1)
        with pytest.raises(Unavailable):
            await watch.next()
    monkeypatch.undo()
    async with opened(path) as store:
        assert store.revision == 1


def fill_up(ballast: Path) -> None:
    """Write a file until nothing more fits."""
    with ballast.open("wb", buffering=0) as handle, contextlib.suppress(OSError):
        while True:
            handle.write(bytes(4096))


async def test_a_real_disk_that_fills_up_refuses_and_recovers(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", megabytes=4) as mounted:
        path = mounted.path / "store.db"
        async with opened(path) as store:
            await fill(store, 10)
            ballast = mounted.path / "ballast"
            fill_up(ballast)
            before = state(store)
            with pytest.raises(StorageFailed, match="full"):
                await fill(store, 100, size=4000, prefix="lab/more/y/")
            assert state(store) == before
            assert store.get("lab/x/y/000007") is not None
        async with opened(path) as store:
            assert state(store) == before
            with pytest.raises(StorageFailed, match="full"):
                await fill(store, 100, size=4000, prefix="lab/more/y/")
            ballast.unlink()
            await fill(store, 100, size=4000, prefix="lab/more/y/")
            after = state(store)
        async with opened(path) as store:
            assert state(store) == after
            assert len(after) == 110
