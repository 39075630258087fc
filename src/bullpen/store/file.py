"""Database files: creating them, and recognising our own.

A file that is not ours, was created by a newer version or is damaged is refused with an
error that says what to do, and is left unchanged byte for byte. A new file appears complete
or not at all.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import apsw

from bullpen.errors import Damaged, Refused
from bullpen.store import walcheck
from bullpen.store.limits import MIB
from bullpen.store.lock import FileLock
from bullpen.store.replay import Contradiction

APPLICATION_ID = 0x42_4C_50_4E
"""``BLPN`` in ASCII, in the application id field of SQLite files."""

SCHEMA_VERSION = 1

WAL_BYTES_MAX = 32 * MIB
"""The write-ahead log is truncated to this size after a burst."""

_MAGIC = b"SQLite format 3\x00"

_SCHEMA = f"""
PRAGMA page_size = 8192;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
CREATE TABLE log (
    revision INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    verb INTEGER NOT NULL,
    value BLOB NOT NULL
) STRICT;
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT;
INSERT INTO meta VALUES ('oldest', 0);
"""

# The locking mode comes first: it keeps the index of the write-ahead log in our own memory, where
# neither a full disk nor another process can affect it.
_SETTINGS = f"""
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA synchronous = FULL;
PRAGMA fullfsync = ON;
PRAGMA cell_size_check = ON;
PRAGMA journal_size_limit = {WAL_BYTES_MAX};
"""


def take_lock(path: Path) -> FileLock:
    """Lock the database at ``path`` or raise ``Refused``."""
    with refusals(path):
        return FileLock.take(path.with_name(path.name + ".lock"))


def open_or_create(path: Path, vfs: str | None) -> apsw.Connection:
    """A connection to the database at ``path``; ``leave`` closes it without changes.

    Raises ``Refused``.
    """
    with refusals(path):
        if not path.exists():
            _create(path)
        check_header(path)
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
        try:
            _prepare(connection, path)
        except BaseException:
            leave(connection, path)
            raise
        return connection


def trust(connection: apsw.Connection) -> None:
    """From now on the file may be modified: it is ours and valid."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)


def leave(connection: apsw.Connection, path: Path) -> None:
    """Close an untrusted connection without changing the file."""
    connection.close()
    wal = _wal(path)
    if wal.exists() and not wal.stat().st_size:
        wal.unlink()


def check_content(connection: apsw.Connection, path: Path) -> None:
    """Raise ``Refused`` unless the database is valid and of a known version."""
    version = connection.pragma("user_version")
    if version != SCHEMA_VERSION:
        raise _wrong_version(path, version)
    problems = [text for (text,) in connection.execute("PRAGMA quick_check(3)")]
    if problems != ["ok"]:
        raise _damaged(path, "; ".join(problems))


@contextlib.contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Convert any error that prevents opening the file to ``Refused`` with advice."""
    try:
        yield
    except apsw.BusyError:
        raise Refused(
            f"{path} is in use by another program; close that one first, "
            "and copy the database instead of opening it twice"
        ) from None
    except (apsw.CorruptError, apsw.NotADBError, Contradiction) as error:
        raise _damaged(path, str(error)) from error
    except (OSError, apsw.Error) as error:
        raise Refused(
            f"{path} cannot be opened: {error}; check that its directory exists, "
            "is writable and has space left"
        ) from error


def make_private(path: Path) -> None:
    """Create an empty file that only its owner may read, because it will contain secrets."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def move_into_place(path: Path, target: Path) -> None:
    """Rename a finished file, durably and atomically."""
    _sync(path)
    path.replace(target)
    _sync(target.parent)


def _create(path: Path) -> None:
    wal = _wal(path)
    if wal.exists() and wal.stat().st_size:
        raise Damaged(
            f"{path} is missing but {wal.name} is there, so the database was lost or moved; "
            f"put it back, or remove {wal.name} to begin with an empty one"
        )
    unfinished = path.with_name(path.name + ".new")
    make_private(unfinished)
    with contextlib.closing(apsw.Connection(str(unfinished))) as connection:
        connection.execute(_SCHEMA).fetchall()
    move_into_place(unfinished, path)


def check_header(path: Path) -> None:
    """Raise ``Refused`` unless the header identifies the file as ours."""
    with path.open("rb") as handle:
        header = handle.read(100)
    owner = int.from_bytes(header[68:72], "big")
    if not header.startswith(_MAGIC) or owner != APPLICATION_ID:
        raise Damaged(
            f"{path} is not a Bullpen database and was left alone; "
            "move it away, or choose another data directory"
        )
    version = int.from_bytes(header[60:64], "big")
    if version > SCHEMA_VERSION:
        raise _wrong_version(path, version)


def _prepare(connection: apsw.Connection, path: Path) -> None:
    if connection.readonly("main"):
        raise Refused(f"{path} cannot be written to; check its owner and permissions")
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    # Fetch all rows: a setting that returns a row would stop the script there.
    connection.execute(_SETTINGS).fetchall()
    check_content(connection, path)
    connection.pragma("journal_mode", "wal")
    frames, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    found = walcheck.problem(_wal(path), valid_frames=max(0, frames))
    if found:
        raise _damaged(path, found)


def _damaged(path: Path, problem: str) -> Damaged:
    # Both files together, because an old write-ahead log would be applied to the backup.
    return Damaged(
        f"{path} is damaged and was left alone; "
        "move it away together with its -wal file, and put a backup in its place",
        problem=problem,
    )


def _wrong_version(path: Path, version: object) -> Refused:
    return Refused(
        f"{path} was made by another version of Bullpen and was left alone; "
        "start it with that version, or choose another data directory",
        schema=version,
        supported=SCHEMA_VERSION,
    )


def _wal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
