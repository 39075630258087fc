"""Which backups are made, which are kept, and that none goes before a newer one is sound."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.datadir import backups
from bullpen.datadir.backups import Backup, BackupKeeper, Schedule, stored_backups, surplus
from bullpen.datadir.directory import Layout
from bullpen.errors import Damaged, Refused
from bullpen.kit.clock import EPOCH, VirtualClock
from bullpen.store.base import ABSENT
from bullpen.store.sqlite import SqliteStore

SCHEDULE = Schedule(every=timedelta(hours=1), keep=3, max_age=timedelta(days=2))


def backup(hours_ago: float) -> Backup:
    return Backup(path=Path(f"{hours_ago}"), made_at=EPOCH - timedelta(hours=hours_ago))


@pytest.mark.parametrize(
    ("ages", "gone"),
    [
        pytest.param([], [], id="nothing is nothing"),
        pytest.param([1, 2, 3], [], id="as many as may be kept are kept"),
        pytest.param([1, 2, 3, 4, 5], [4, 5], id="the oldest go"),
        pytest.param([1, 50], [50], id="what is too old goes"),
        pytest.param([100], [], id="the newest stays however old it is"),
        pytest.param([100, 101, 102], [101, 102], id="only the newest does"),
    ],
)
def test_surplus(ages: list[float], gone: list[float]) -> None:
    kept = [backup(age) for age in ages]
    assert [item.path.name for item in surplus(kept, SCHEDULE, now=EPOCH)] == [
        str(age) for age in gone
    ]


@given(st.lists(st.floats(0, 100), max_size=12, unique=True), st.integers(1, 6))
def test_what_is_left_is_bounded_and_holds_the_newest(ages: list[float], keep: int) -> None:
    kept = [backup(age) for age in sorted(ages)]
    schedule = Schedule(every=SCHEDULE.every, keep=keep, max_age=SCHEDULE.max_age)
    left = [item for item in kept if item not in surplus(kept, schedule, now=EPOCH)]
    assert len(left) <= keep
    assert left[:1] == kept[:1]


@contextlib.asynccontextmanager
async def opened(layout: Layout) -> AsyncIterator[SqliteStore]:
    store = await backups.open_store(layout)
    try:
        yield store
    finally:
        await store.close()


async def write(store: SqliteStore, key: str) -> None:
    head = store.head(key)
    await store.put(key, lambda _: b"{}", expect=head.revision if head else ABSENT)


async def test_a_backup_is_made_only_of_what_changed_and_the_oldest_goes(tmp_path: Path) -> None:
    layout, clock = Layout(tmp_path), VirtualClock()
    async with opened(layout) as store:
        keeper = BackupKeeper(store, layout.backups, SCHEDULE, clock=clock)
        for number in range(5):
            await write(store, f"a/b/{number}")
            await keeper.make()
            await keeper.make()
            clock.advance(SCHEDULE.every)
    made = [item.made_at for item in stored_backups(layout.backups)]
    assert made == [EPOCH + timedelta(hours=hour) for hour in (4, 3, 2)]
    modes = {path.stat().st_mode & 0o777 for path in layout.backups.iterdir()}
    assert modes == {0o600}
    assert layout.backups.stat().st_mode & 0o777 == 0o700


async def test_a_backup_that_cannot_be_made_takes_none_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, clock = Layout(tmp_path), VirtualClock()
    schedule = Schedule(every=SCHEDULE.every, keep=1, max_age=SCHEDULE.max_age)
    async with opened(layout) as store:
        keeper = BackupKeeper(store, layout.backups, schedule, clock=clock)
        await write(store, "a/b/c")
        await keeper.make()
        before = stored_backups(layout.backups)
        clock.advance(SCHEDULE.every)
        await write(store, "a/b/c")

        def unreadable(_: bytes) -> object:
            raise ValueError("spoiled")

        monkeypatch.setattr(store, "_check", unreadable)
        await keeper.make()
    assert stored_backups(layout.backups) == before
    assert "backup failed" in caplog.text
    assert not list(layout.backups.glob("*partial*"))


async def finish(store: SqliteStore, layout: Layout) -> None:
    keeper = BackupKeeper(store, layout.backups, SCHEDULE, clock=VirtualClock())
    keeper.service_ready()
    await keeper.finish()


async def test_a_service_that_never_became_ready_makes_no_backup_and_removes_none(
    tmp_path: Path,
) -> None:
    """A service that could not start replaced every good backup after 26 attempts."""
    layout, clock = Layout(tmp_path), VirtualClock()
    async with opened(layout) as store:
        await write(store, "a/b/c")
        await finish(store, layout)
    good = stored_backups(layout.backups)
    for _ in range(SCHEDULE.keep + 1):
        clock.advance(SCHEDULE.every)
        async with opened(layout) as store:
            await write(store, "a/b/c")
            keeper = BackupKeeper(store, layout.backups, SCHEDULE, clock=clock)
            running = asyncio.create_task(keeper.run())
            await asyncio.sleep(0)
            running.cancel()
            await keeper.finish()
    assert stored_backups(layout.backups) == good


async def test_what_a_killed_predecessor_did_not_finish_is_removed(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.backups.mkdir()
    (layout.backups / "state-20260101T000000+0000.db.partial1").write_bytes(b"half")
    async with opened(layout) as store:
        await write(store, "a/b/c")
        await finish(store, layout)
    assert [path.suffix for path in layout.backups.iterdir()] == [".db"]


async def test_a_lost_database_is_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    async with opened(layout) as store:
        await write(store, "a/b/c")
        await finish(store, layout)
    layout.database.unlink()
    with pytest.raises(Damaged, match="bullpen restore --data"):
        await backups.open_store(layout)
    assert not layout.database.exists()


async def test_an_interrupted_restore_keeps_the_service_from_starting(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.restoring.touch()
    with pytest.raises(Refused, match="run it again: bullpen restore --data"):
        await backups.open_store(layout)


async def test_a_value_that_is_not_json_is_found_although_sqlite_is_content(
    tmp_path: Path,
) -> None:
    """SQLite keeps no checksums: zeros in the middle of a value are fine with it."""
    layout = Layout(tmp_path)
    async with opened(layout) as store:
        value = b'{"note": "' + b"x" * 30_000 + b'"}'
        await store.put("a/b/c", lambda _: value, expect=ABSENT)
    content = bytearray(layout.database.read_bytes())
    spot = content.index(b"x" * 5000) + 2000
    content[spot : spot + 512] = bytes(512)
    layout.database.write_bytes(content)
    with pytest.raises(Damaged, match="holds something unreadable at revision 1"):
        await backups.open_store(layout)
