"""Which files are opened, which are refused, and that refused ones are left alone."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from bullpen.errors import Damaged, Refused
from bullpen.store.sqlite import SqliteStore
from support.mounts import tmpfs
from support.sqlite_helpers import fill, opened, overwrite


def snapshot(directory: Path) -> dict[str, str]:
    """Every file and its content, but for the lock we may leave."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in directory.iterdir()
        if not file.name.endswith(".lock")
    }


async def a_store(path: Path) -> None:
    async with opened(path) as store:
        await fill(store, 200, size=1000)


def sql(path: Path, script: str) -> None:
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.execute(script)


def somebody_elses_text(path: Path) -> None:
    path.write_text("meeting notes\n" * 1000)


def nothing_at_all(path: Path) -> None:
    path.touch()


def somebody_elses_database(path: Path) -> None:
    sql(path, "CREATE TABLE log (revision, key, verb, value); INSERT INTO log VALUES (1, 2, 3, 4)")


def a_newer_version(path: Path) -> None:
    sql(path, "PRAGMA user_version = 3")


def an_older_version(path: Path) -> None:
    sql(path, "PRAGMA user_version = 0")


def a_page_overwritten(path: Path) -> None:
    with path.open("r+b") as handle:
        handle.seek(8192 * 4)
        handle.write(os.urandom(8192))


def the_second_half_missing(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def a_table_missing(path: Path) -> None:
    sql(path, "DROP TABLE log")


def a_deletion_of_nothing(path: Path) -> None:
    sql(path, "INSERT INTO log VALUES (1000, 'a', 2, x'')")


def no_beginning(path: Path) -> None:
    sql(path, "DELETE FROM meta")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        pytest.param(nothing_at_all, "is not a Bullpen database", id="an empty file"),
        pytest.param(somebody_elses_text, "is not a Bullpen database", id="not a database"),
        pytest.param(somebody_elses_database, "is not a Bullpen database", id="not our database"),
        pytest.param(a_newer_version, "another version", id="made by a newer version"),
        pytest.param(an_older_version, "another version", id="made by an older version"),
        pytest.param(a_page_overwritten, "is damaged", id="a page is overwritten"),
        pytest.param(the_second_half_missing, "is damaged", id="the file was cut off"),
        pytest.param(a_table_missing, "cannot be opened", id="a table is missing"),
        pytest.param(a_deletion_of_nothing, "is damaged", id="the log makes no sense"),
        pytest.param(no_beginning, "is damaged", id="the log has no beginning"),
    ],
)
async def test_a_file_is_refused_and_left_alone(
    tmp_path: Path, spoil: Callable[[Path], None], says: str
) -> None:
    path = tmp_path / "store.db"
    if not spoil.__name__.startswith(("somebody", "nothing")):
        await a_store(path)
    spoil(path)
    before = snapshot(tmp_path)
    for _ in range(2):
        with pytest.raises(Refused, match=says):
            await SqliteStore.open(path)
    assert snapshot(tmp_path) == before


async def crashed_copy(path: Path, directory: Path) -> Path:
    """What ``kill -9`` would have left of a store with something in its write-ahead log."""
    await a_store(path)
    directory.mkdir()
    async with opened(path) as store:
        await overwrite(store, 3)
        for file in (path, path.with_name("store.db-wal")):
            (directory / file.name).write_bytes(file.read_bytes())
    return directory / path.name


async def test_a_damaged_file_is_left_alone_together_with_its_write_ahead_log(
    tmp_path: Path,
) -> None:
    """What is in the log may be all that can be saved."""
    crashed = await crashed_copy(tmp_path / "store.db", tmp_path / "crashed")
    a_page_overwritten(crashed)
    before = snapshot(crashed.parent)
    with pytest.raises(Refused, match=r"is damaged.*together with its -wal file"):
        await SqliteStore.open(crashed)
    assert snapshot(crashed.parent) == before


async def test_a_log_that_makes_no_sense_is_left_alone_together_with_its_write_ahead_log(
    tmp_path: Path,
) -> None:
    crashed = await crashed_copy(tmp_path / "store.db", tmp_path / "crashed")
    wal = crashed.with_name("store.db-wal")
    content = wal.read_bytes()
    wal.unlink()
    sql(crashed, "DELETE FROM meta; INSERT INTO log VALUES (1000, 'a', 2, x'')")
    wal.write_bytes(content)
    before = snapshot(crashed.parent)
    with pytest.raises(Refused):
        await SqliteStore.open(crashed)
    assert snapshot(crashed.parent) == before


async def test_a_write_ahead_log_without_its_database_is_not_overwritten(tmp_path: Path) -> None:
    crashed = await crashed_copy(tmp_path / "store.db", tmp_path / "crashed")
    crashed.unlink()
    before = snapshot(crashed.parent)
    with pytest.raises(Refused, match="is missing but"):
        await SqliteStore.open(crashed)
    assert snapshot(crashed.parent) == before


async def test_what_a_crash_left_half_written_in_the_log_is_not_there(tmp_path: Path) -> None:
    crashed = await crashed_copy(tmp_path / "store.db", tmp_path / "crashed")
    wal = crashed.with_name("store.db-wal")
    os.truncate(wal, wal.stat().st_size - 100)
    async with opened(crashed) as store:
        assert store.revision == 202


async def test_an_unfinished_new_file_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "store.db.new").write_text("half a database")
    async with opened(tmp_path / "store.db") as store:
        assert store.revision == 0
    assert {file.name for file in tmp_path.iterdir()} == {"store.db", "store.db.lock"}


@pytest.mark.parametrize("place", ["missing/store.db", "taken/store.db"])
async def test_a_place_where_no_file_can_be_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(Refused, match="check that its directory exists"):
        await SqliteStore.open(tmp_path / place)


async def test_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.db").mkdir()
    with pytest.raises(Refused, match="cannot be opened"):
        await SqliteStore.open(tmp_path / "store.db")


async def test_a_file_system_that_is_read_only_is_refused(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", megabytes=4) as disk:
        await a_store(disk.path / "store.db")
        disk.remount("ro")
        with pytest.raises(Refused, match="cannot be opened"):
            await SqliteStore.open(disk.path / "store.db")
        disk.remount("rw")


# Ownership


async def test_a_second_store_on_the_same_file_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        for _ in range(2):
            with pytest.raises(Refused, match=f"in use by process {os.getpid()}"):
                await SqliteStore.open(path)
        await overwrite(store, 1)
    async with opened(path) as store:
        assert store.revision == 1


async def test_a_refused_file_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch()
    with pytest.raises(Refused):
        await SqliteStore.open(path)
    path.unlink()
    async with opened(path):
        pass


async def test_a_file_another_program_has_open_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await a_store(path)
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        assert connection.execute("BEGIN; SELECT count(*) FROM log").get == 200
        with pytest.raises(Refused, match="in use by another program"):
            await SqliteStore.open(path)
    async with opened(path) as store:
        assert store.revision == 200


async def test_another_program_cannot_get_in(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path):
        with (
            contextlib.closing(apsw.Connection(str(path))) as connection,
            pytest.raises(apsw.BusyError),
        ):
            connection.execute("SELECT count(*) FROM log")


async def test_giving_up_while_opening_lets_go_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await SqliteStore.open(path)
    store = await eventually_opened(path)
    await store.close()


async def eventually_opened(path: Path) -> SqliteStore:
    while True:
        try:
            return await SqliteStore.open(path)
        except Refused:
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_another_process_is_refused_and_told_who_holds_the_file(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    script = (
        "import asyncio, pathlib, sys\n"
        "from bullpen.store.sqlite import SqliteStore\n"
        "asyncio.run(SqliteStore.open(pathlib.Path(sys.argv[1])))\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    async with opened(path) as store:
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        await overwrite(store, 1)
    assert refused.returncode == 1
    assert f"in use by process {os.getpid()}" in refused.stderr
    assert "database is locked" not in refused.stderr


async def test_rows_that_break_a_rule_of_their_table_are_damage(tmp_path: Path) -> None:
    """SQLite reads every page of such a database without an error; only its check notices."""
    path = tmp_path / "store.db"
    async with opened(path) as store:
        await fill(store, 3)
    connection = apsw.Connection(str(path))
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    connection.execute("PRAGMA writable_schema = ON")
    tables = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'")
    for name, text in tables.fetchall():
        head, _, tail = str(text).rpartition(")")
        changed = f"{head}, CHECK (0)){tail}"
        connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (changed, name))
    connection.close()
    with pytest.raises(Damaged, match="CHECK constraint failed"):
        await SqliteStore.open(path)


async def test_a_file_of_version_1_is_read_and_becomes_one_of_this_version(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await a_store(path)
    sql(path, "PRAGMA user_version = 1")
    async with opened(path) as store:
        assert store.revision == 200
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        assert connection.pragma("user_version") == 2
