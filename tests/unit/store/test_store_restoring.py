"""From a backup to a database: everything is there, and no revision comes twice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bullpen.errors import Damaged, Gone, Refused
from bullpen.store import copies
from bullpen.store.copies import REVISION_LEAP, rebuild
from bullpen.store.sqlite import SqliteStore
from support.sqlite_helpers import KEY, fill, opened, overwrite, state


async def test_a_restored_store_has_the_state_but_goes_on_far_ahead(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        await fill(store, 20)
        await overwrite(store, 5)
        gone = "lab/x/y/000003"
        await store.delete(gone, lambda _: b"", expect=store.head(gone).revision)  # type: ignore[union-attr]
        await store.backup(tmp_path / "backup.db")
        before, revision = state(store), store.revision
        await overwrite(store, 3)
        last_seen = store.revision
    content = rebuild(tmp_path / "backup.db", tmp_path / "new.db")
    assert (content.revision, content.keys) == (revision + REVISION_LEAP, len(before))
    assert (tmp_path / "new.db").stat().st_mode & 0o777 == 0o600
    async with opened(tmp_path / "new.db") as store:
        assert state(store) == before
        assert store.revision > last_seen
        for seen in (revision, last_seen):
            with pytest.raises(Gone):
                store.watch("", since=seen)
        await overwrite(store, 1)
        assert store.revision == revision + REVISION_LEAP + 1
        changes = await store.watch("", since=revision + REVISION_LEAP).next()
        assert [change.key for change in changes] == [KEY]
    async with opened(tmp_path / "new.db") as store:
        assert store.revision == revision + REVISION_LEAP + 1


async def test_a_backup_with_its_whole_history_can_be_restored_too(tmp_path: Path) -> None:
    """Older ones have it, and so has a copy of a database whose service was stopped."""
    async with opened(tmp_path / "store.db") as store:
        await fill(store, 20)
        await overwrite(store, 5)
        await store.delete(KEY, lambda _: b"", expect=store.revision)
        before, revision = state(store), store.revision
    content = rebuild(tmp_path / "store.db", tmp_path / "new.db")
    assert (content.revision, content.keys) == (revision + REVISION_LEAP, len(before))
    async with opened(tmp_path / "new.db") as store:
        assert (state(store), store.oldest) == (before, revision + REVISION_LEAP)


async def test_a_backup_that_is_not_sound_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        await fill(store, 200, size=1000)
        await store.backup(tmp_path / "backup.db")
    os.truncate(tmp_path / "backup.db", 8192 * 5)
    with pytest.raises(Refused):
        rebuild(tmp_path / "backup.db", tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()


async def killed_with_a_log(directory: Path, commits: int) -> Path:
    """What ``kill -9`` leaves of a store with that many commits in its write-ahead log."""
    directory.mkdir()
    async with opened(directory / "store.db") as store:
        await overwrite(store, commits)
        for name in ("store.db", "store.db-wal"):
            shutil.copyfile(directory / name, directory / f"left-{name}")
    return directory / "left-store.db"


async def revision_of(path: Path) -> int:
    store = await SqliteStore.open(path)
    await store.close()
    return store.revision


async def test_garbage_in_the_middle_of_the_log_is_not_taken_for_its_end(tmp_path: Path) -> None:
    """SQLite itself would drop every commit after it and say nothing."""
    path = await killed_with_a_log(tmp_path / "a", 10)
    wal = path.with_name(path.name + "-wal")
    content = bytearray(wal.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = os.urandom(64)
    wal.write_bytes(content)
    for _ in range(2):
        with pytest.raises(Damaged) as refused:
            await SqliteStore.open(path)
        assert "commits follow an unreadable one" in str(refused.value)
    assert wal.read_bytes() == bytes(content)


async def test_a_damaged_header_of_the_log_is_noticed(tmp_path: Path) -> None:
    path = await killed_with_a_log(tmp_path / "a", 10)
    wal = path.with_name(path.name + "-wal")
    content = bytearray(wal.read_bytes())
    content[17] ^= 0xFF
    wal.write_bytes(content)
    with pytest.raises(Damaged) as refused:
        await SqliteStore.open(path)
    assert "the header of its write-ahead log is damaged" in str(refused.value)


@pytest.mark.parametrize("lost", [1, 100, 8192, 8300])
async def test_a_last_commit_that_was_cut_off_is_a_crash_and_no_damage(
    tmp_path: Path, lost: int
) -> None:
    path = await killed_with_a_log(tmp_path / "a", 10)
    wal = path.with_name(path.name + "-wal")
    os.truncate(wal, wal.stat().st_size - lost)
    assert 8 <= await revision_of(path) <= 9


@pytest.mark.parametrize("tail", [bytes(20_000), os.urandom(20_000)], ids=["zeros", "garbage"])
async def test_what_a_crash_left_behind_the_last_commit_is_no_damage(
    tmp_path: Path, tail: bytes
) -> None:
    path = await killed_with_a_log(tmp_path / "a", 10)
    with path.with_name(path.name + "-wal").open("ab") as wal:
        wal.write(tail)
    assert await revision_of(path) == 10


async def test_frames_of_an_older_log_behind_a_short_new_one_are_no_damage(tmp_path: Path) -> None:
    """After a checkpoint the log is written from its beginning; what follows is history."""
    directory = tmp_path / "a"
    directory.mkdir()
    async with opened(directory / "store.db") as store:
        await overwrite(store, 1200)
        for name in ("store.db", "store.db-wal"):
            shutil.copyfile(directory / name, directory / f"left-{name}")
    assert await revision_of(directory / "left-store.db") == 1200


async def test_a_restore_that_fails_half_way_leaves_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "store.db") as store:
        await fill(store, 5)
        await store.backup(tmp_path / "backup.db")

    def full(_target: Path, *, leap: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(copies, "prune", full)
    with pytest.raises((OSError, Refused)):
        rebuild(tmp_path / "backup.db", tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()
