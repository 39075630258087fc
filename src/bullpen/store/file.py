"""The database file: its lock, its format and its write-ahead log.

Exclusive ownership of a file, without waiting. A file beside the database is locked while
the store is open. The database itself is not used for this: closing any handle to it would
drop the locks SQLite holds on it in this process. The lock is released when its process
ends, also after ``kill -9``, unless a forked child that never called exec outlives it. The
file is kept, because removing it would allow two owners.

Detects lost commits in a write-ahead log that SQLite would silently ignore. SQLite takes
the first frame with a wrong checksum for the end of the log. That is correct after a crash,
when the last commit was never synced, and wrong when the disk corrupted the middle of the
log. The frames that follow distinguish the two. A commit starts only after the previous one
was synced, so two commits after the first bad frame prove that the first of them had been
acknowledged.

Database files: creating them, and recognising our own. A file that is not ours, was created
by a newer version or is damaged is refused with an error that says what to do, and is left
unchanged byte for byte. A new file appears complete or not at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import apsw

from bullpen.errors import Damaged, Refused
from bullpen.store.history import MIB
from bullpen.store.ledger import Contradiction


class FileLock:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    @classmethod
    def take(cls, path: Path) -> FileLock:
        """Lock ``path`` or raise ``Refused`` naming the process that holds it."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(handle, 20).decode(errors="replace").strip()
            os.close(handle)
            raise Refused(
                f"{path.with_suffix('')} is in use by process {owner or 'unknown'}; "
                "stop that one first, or choose another data directory",
            ) from None
        # The pid is informational; a full disk must not prevent the lock.
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
        return cls(handle)

    def release(self) -> None:
        os.close(self._handle)


_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_WAL_MAGIC = (0x377F0682, 0x377F0683)
"""Little-endian and big-endian checksums."""

UNSYNCED_COMMITS_MAX = 1
"""Commits a crash may leave half written."""


def problem(wal: Path, *, valid_frames: int) -> str:
    """The error in the log, given the number of frames SQLite accepted; or empty."""
    if not wal.exists():
        return ""
    with wal.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or not any(header):
            # The header itself was never synced, so no commit followed it.
            return ""
        magic, _, page_size, _, *salts, first, second = _HEADER.unpack(header)
        if magic not in _WAL_MAGIC or _checksum(header[:24], big=magic & 1 == 1) != (first, second):
            return "the header of its write-ahead log is damaged"
        step = _FRAME.size + page_size
        commits = 0
        for offset in range(_HEADER.size + valid_frames * step, wal.stat().st_size, step):
            file.seek(offset)
            commits += _commits(file.read(_FRAME.size), salts)
    if commits > UNSYNCED_COMMITS_MAX:
        return f"its write-ahead log is damaged: {commits} commits follow an unreadable one"
    return ""


def _commits(frame: bytes, salts: list[int]) -> bool:
    """Whether this frame ends a commit of the current log and not of an earlier one."""
    if len(frame) < _FRAME.size:
        return False
    _, pages_after, first, second, _, _ = _FRAME.unpack(frame)
    return pages_after > 0 and [first, second] == salts


def _checksum(data: bytes, *, big: bool) -> tuple[int, int]:
    """SQLite's checksum, over the words of a header."""
    words = struct.unpack(f"{'>' if big else '<'}{len(data) // 4}I", data)
    first = second = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


APPLICATION_ID = 0x42_4C_50_4E
"""``BLPN`` in ASCII, in the application id field of SQLite files."""

SCHEMA_VERSION = 2
SCHEMA_VERSION_MIN = 1
"""Older versions that can be read; opening one makes it a file of this version.

Version 2 has packed values, which version 1 has not.
"""

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
    if connection.pragma("user_version") != SCHEMA_VERSION:
        connection.pragma("user_version", SCHEMA_VERSION)


def leave(connection: apsw.Connection, path: Path) -> None:
    """Close an untrusted connection without changing the file."""
    connection.close()
    wal = _wal(path)
    if wal.exists() and not wal.stat().st_size:
        wal.unlink()


def check_content(connection: apsw.Connection, path: Path) -> None:
    """Raise ``Refused`` unless the database is valid and of a known version."""
    version = connection.pragma("user_version")
    if not isinstance(version, int) or not SCHEMA_VERSION_MIN <= version <= SCHEMA_VERSION:
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
    found = problem(_wal(path), valid_frames=max(0, frames))
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
