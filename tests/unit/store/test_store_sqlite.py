"""What the SQLite store keeps across restarts, and what it costs."""

from __future__ import annotations

import asyncio
import stat
import threading
from pathlib import Path

import apsw
import pytest

from bullpen.errors import Gone, Refused
from bullpen.store import sqlite
from bullpen.store import sqlite as database_module
from bullpen.store.base import ABSENT, Change
from bullpen.store.file import WAL_BYTES_MAX
from bullpen.store.history import DEFAULT_LIMITS, Forgotten, Limits
from bullpen.store.sqlite import Database
from support.faulty import Disk
from support.sqlite_helpers import KEY, fill, opened, overwrite, query, state

# Restarts


async def test_a_restart_finds_objects_history_and_revision_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await fill(store, 5)
        await overwrite(store, 3)
        await store.delete(KEY, lambda _: b"last", expect=8)
        await overwrite(store, 1)
        before = (state(store), store.revision, store.oldest)
        changes = await store.watch("", since=0).next()
    async with opened(path) as store:
        assert (state(store), store.revision, store.oldest) == before
        assert await store.watch("", since=0).next() == changes
        entry = await store.put("lab/x/y/next", lambda _: b"", expect=ABSENT)
        assert entry.revision == store.revision == 11


async def test_a_watcher_resumes_after_a_restart_without_gap_or_repetition(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.db"
    seen: list[Change] = []
    for round_ in range(4):
        async with opened(path) as store:
            watch = store.watch("", since=seen[-1].revision if seen else 0)
            await overwrite(store, 3 + round_)
            while watch.position < store.revision:
                seen += await watch.next()
            # Written after the watcher last looked: it is there next time.
            await overwrite(store, 2)
    assert [change.revision for change in seen] == list(range(1, 25))


async def test_revisions_grow_even_when_the_newest_was_deleted_and_compacted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.db"
    limits = Limits(history_count_max=0)
    async with opened(path, limits) as store:
        await fill(store, 1)
        await overwrite(store, 1)
        await store.delete(KEY, lambda _: b"", expect=2)
        await store.delete("lab/x/y/000000", lambda _: b"", expect=1)
    async with opened(path, limits) as store:
        assert state(store) == ()
        assert store.revision == store.oldest == 4
        await overwrite(store, 1)
        assert store.revision == 5
    assert query(path, "SELECT revision FROM log") == [(5,)]


async def test_the_file_forgets_what_the_history_forgot(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path, Limits(history_count_max=10)) as store:
        await fill(store, 3)
        await overwrite(store, 100)
        await store.delete("lab/x/y/000001", lambda _: b"", expect=2)
        await overwrite(store, 100)
        oldest = store.oldest
        with pytest.raises(Gone):
            store.watch("", since=oldest - 1)
    # The clearing out goes with the next commit, so one change lags behind.
    ((on_disk,),) = query(path, "SELECT value FROM meta WHERE name = 'oldest'")
    assert on_disk == oldest - 1
    assert query(path, "SELECT count(*) FROM log") == [(2 + 11 + 1,)]


async def test_a_smaller_history_is_cleared_out_bit_by_bit(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await overwrite(store, 100)
    async with opened(path, Limits(history_count_max=5)) as store:
        assert store.oldest == 95
        await overwrite(store, 1)
    assert query(path, "SELECT count(*) FROM log") == [(101 - 18 + 1,)]
    async with opened(path, Limits(history_count_max=5)) as store:
        await overwrite(store, 10)
        assert store.oldest == 106
    assert query(path, "SELECT count(*) FROM log") == [(7,)]


@pytest.mark.parametrize(
    ("writes", "cleared"),
    [
        pytest.param(1, 18, id="a small commit clears out little"),
        pytest.param(64, 144, id="a larger one about twice what it adds"),
        pytest.param(2000, 2500, id="a huge one keeps pace and 500 more"),
    ],
)
async def test_a_commit_clears_out_in_proportion_to_what_it_adds(
    tmp_path: Path, writes: int, cleared: int
) -> None:
    path = tmp_path / "store.db"
    database, ledger = Database.open(path, limits=DEFAULT_LIMITS)
    database.forget([Forgotten(revision, ()) for revision in range(1, 10_000)])
    for number in range(writes):
        ledger.put(f"a/b/{number}", lambda _: b"", ABSENT)
    database.commit(ledger.commit(writes))
    database.close()
    assert query(path, "SELECT value FROM meta") == [(cleared,)]


# Cost


async def test_writes_of_one_turn_share_one_sync(tmp_path: Path) -> None:
    disk = Disk("counting")
    async with opened(tmp_path / "store.db", vfs=disk.name) as store:
        await overwrite(store, 1)
        disk.syncs.clear()
        await fill(store, 500)
        assert disk.syncs == ["wal"]
        disk.syncs.clear()
        await overwrite(store, 3)
        assert disk.syncs == ["wal"] * 3


async def test_reads_do_not_touch_the_disk(tmp_path: Path) -> None:
    disk = Disk("unread")
    async with opened(tmp_path / "store.db", vfs=disk.name) as store:
        await fill(store, 100)
        disk.reads = 0
        assert len(state(store)) == 100
        assert store.get("lab/x/y/000007") is not None
        assert len(await store.watch("", since=0).next()) == 100
        assert disk.reads == 0


async def test_the_write_ahead_log_is_emptied_before_it_grows_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "CHECKPOINT_PAGES", 20)
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await overwrite(store, 300, size=4000)
        wal = path.with_name("store.db-wal").stat().st_size
        assert wal < (20 * database_module.CHECKPOINT_FACTOR + 10) * 8300
    assert not path.with_name("store.db-wal").exists()


async def test_the_write_ahead_log_is_emptied_when_nobody_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "CHECKPOINT_PAGES", 20)
    path = tmp_path / "store.db"
    async with opened(path) as store:
        before = path.stat().st_size
        await overwrite(store, 30, size=4000)
        for _ in range(1_000):
            if path.stat().st_size > before:
                return
            await asyncio.sleep(0.01)
    raise AssertionError("nothing was moved to the database")


async def test_the_write_ahead_log_is_cut_back_after_a_burst(tmp_path: Path) -> None:
    wal = tmp_path / "store.db-wal"
    async with opened(tmp_path / "store.db") as store:
        await fill(store, 9000, size=4000)
        assert wal.stat().st_size > WAL_BYTES_MAX
        await overwrite(store, 2)
        assert wal.stat().st_size <= WAL_BYTES_MAX


@pytest.mark.slow
async def test_overwriting_without_end_keeps_the_file_small(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    objects, size, history = 200, 1000, 2000

    async def overwrite_all(number: int) -> None:
        await overwrite(store, 1000, key=f"lab/x/y/{number:06}", size=size)

    async with opened(path, Limits(history_count_max=history)) as store:
        async with asyncio.TaskGroup() as group:
            for number in range(objects):
                group.create_task(overwrite_all(number))
        assert store.revision == 200_000
    kept = (objects + history) * size
    assert kept < path.stat().st_size < 4 * kept


async def test_a_closed_store_holds_no_thread_and_no_file(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await overwrite(store, 1)
        assert "bullpen-store" in [thread.name for thread in threading.enumerate()]
    assert "bullpen-store" not in [thread.name for thread in threading.enumerate()]
    assert {file.name for file in tmp_path.iterdir()} == {"store.db", "store.db.lock"}
    handles = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert not [handle for handle in handles if handle.startswith(str(tmp_path))]


async def test_only_the_owner_may_read_the_files(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        await overwrite(store, 1)
        await store.backup(tmp_path / "backup.db")
        for file in tmp_path.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


async def test_the_file_says_whose_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path):
        pass
    assert query(path, "PRAGMA application_id") == [(int.from_bytes(b"BLPN", "big"),)]
    assert query(path, "PRAGMA user_version") == [(2,)]
    assert query(path, "PRAGMA page_size") == [(8192,)]


async def test_the_bundled_sqlite_has_no_known_corruption_bug() -> None:
    """3.51.3 fixed the reset of the write-ahead log racing a checkpoint."""
    assert tuple(map(int, apsw.sqlite_lib_version().split("."))) >= (3, 51, 3)


async def test_an_open_that_nobody_waits_for_may_fail_or_be_cancelled() -> None:
    """What was opened is let go; where nothing was opened there is nothing to do."""
    loop = asyncio.get_running_loop()
    failed, cancelled = loop.create_future(), loop.create_future()
    failed.set_exception(Refused("it is in use"))
    cancelled.cancel()
    for opening in (failed, cancelled):
        sqlite._discard(opening)
