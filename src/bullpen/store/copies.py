"""Copies of a database: made while it is in use, inspected, pruned, restored.

Reads a database completely: is it valid, and what does it contain? ``load`` is used to open
one; ``inspect`` is for copies, which have no writer. Both agree on whether a database is
valid.

A copy without history: the newest value of each key, without deleted keys. The history is
for watchers that resume, and no watcher resumes from a backup. It may be hundreds of times
as large as the current state.

A consistent copy of a live database, a few pages at a time. The writer thread also copies,
between its commits, so no write waits long, and writes committed meanwhile end up in the
copy. The history is removed from the copy, and it gets its final name only after it has
been read back and verified.

A database created from a backup, without ever reusing a revision. After the backup and
before the damage, revisions were issued that the backup does not contain, and watchers and
clients still hold them. So the restored state starts far ahead of the backup's last
revision, without a history: a watcher that resumes from an older revision gets Gone and
lists again.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import apsw

from bullpen.errors import LabError, Refused, StorageFailed
from bullpen.store import file
from bullpen.store.history import DEFAULT_LIMITS, Limits
from bullpen.store.ledger import Check, Ledger, anything, replay
from bullpen.store.packing import Cold, nothing_is_cold

_SELECT_OLDEST = "SELECT value FROM meta WHERE name = 'oldest'"
_SELECT_LOG = "SELECT revision, key, verb, value FROM log ORDER BY revision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The content of a valid database."""

    revision: int
    """The newest revision."""

    keys: int


def inspect(path: Path, *, check: Check = anything) -> Content:
    """The content of the database at ``path``, after reading all of it. Raises ``Refused``."""
    with file.refusals(path):
        file.check_header(path)
        uri = f"{path.absolute().as_uri()}?immutable=1"
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        with contextlib.closing(apsw.Connection(uri, flags=flags)) as connection:
            file.check_content(connection, path)
            ledger = load(connection, path, DEFAULT_LIMITS, check)
    page = ledger.scan("", "", 0, None)
    return Content(revision=ledger.revision, keys=page.remaining)


def load(
    connection: apsw.Connection,
    path: Path,
    limits: Limits,
    check: Check,
    cold: Cold = nothing_is_cold,
) -> Ledger:
    """Everything in the log. Raises ``Refused``."""
    with file.refusals(path):
        oldest = connection.execute(_SELECT_OLDEST).get
        rows = connection.execute(_SELECT_LOG)
        return replay(rows, oldest=oldest, limits=limits, check=check, cold=cold)


_PRUNE = """
BEGIN IMMEDIATE;
UPDATE meta
SET value = {leap} + max(value, (SELECT coalesce(max(revision), 0) FROM log))
WHERE name = 'oldest';
DELETE FROM log WHERE verb = 2 OR revision NOT IN (SELECT max(revision) FROM log GROUP BY key);
COMMIT;
VACUUM;
"""


def prune(path: Path, *, leap: int = 0) -> None:
    """Rewrite a copy in place; its newest revision is advanced by ``leap``.

    Raises ``apsw.Error``; the copy is unusable then.
    """
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        # If this file is lost before it is complete, its original still exists.
        connection.pragma("synchronous", "off")
        connection.pragma("journal_mode", "off")
        # The data contains secrets, and the directory of temporary files may be on any disk.
        connection.pragma("temp_store", "memory")
        connection.execute(_PRUNE.format(leap=leap)).fetchall()


COPY_PAGES = 256
"""Pages copied between two commits: 2 MiB."""


@dataclass(frozen=True, slots=True)
class Order:
    """A requested copy. Cancelling ``done`` aborts it."""

    target: Path
    done: asyncio.Future[None]


class Copier:
    """Carries out one order at a time, on the thread that owns the source."""

    def __init__(self, source: Source, post: Callable[[Callable[[], None]], None]) -> None:
        self._source = source
        self._post = post
        """Schedules a call on the event loop."""

        self._current: tuple[Copy, Order] | None = None

    @property
    def busy(self) -> bool:
        return self._current is not None

    def begin(self, order: Order) -> None:
        """Start an order. A previous order must have been cancelled."""
        self.stop()
        try:
            self._current = self._source.copy(order.target), order
        except Exception as error:  # any error must be reported to the caller
            self._fail(order, error)

    def step(self) -> None:
        """Copy a few pages, if an order is in progress."""
        if self._current is None:
            return
        copy, order = self._current
        if order.done.cancelled():
            self.stop()
            return
        try:
            complete = copy.step()
        except Exception as error:
            copy.close()
            self._fail(order, error)
        else:
            if complete:
                self._current = None
                self._post(lambda: _settle(order, None))

    def stop(self) -> None:
        """Abort the current order. Its caller knows why."""
        if self._current is not None:
            copy, order = self._current
            copy.close()
            self._current = None
            _remove(order.target)

    def _fail(self, order: Order, error: Exception) -> None:
        self._current = None
        _remove(order.target)
        failure = _failure(error)
        self._post(lambda: _settle(order, failure))


class Copy:
    """A copy in progress. Step it on the thread that owns the source."""

    def __init__(self, source: apsw.Connection, target: Path) -> None:
        file.make_private(target)
        self._connection = apsw.Connection(str(target))
        # The target is not read before it is complete and synced.
        self._connection.pragma("synchronous", "off")
        self._connection.pragma("journal_mode", "off")
        self._backup = self._connection.backup("main", source, "main")

    def step(self) -> bool:
        """Copy more pages; True once the copy is complete. Raises ``apsw.Error``."""
        if not self._backup.step(COPY_PAGES):
            return False
        self._backup.finish()
        self._connection.close()
        return True

    def close(self) -> None:
        self._backup.close(force=True)
        self._connection.close(force=True)


class Source(Protocol):
    def copy(self, target: Path) -> Copy:
        """Begin a copy. Raises ``apsw.Error`` or ``OSError``."""


def publish(copy: Path, target: Path, check: Check = anything) -> int:
    """Prune and verify a finished copy and rename it; returns its newest revision.

    Raises ``StorageFailed`` and removes the copy when it is invalid.
    """
    try:
        with file.refusals(copy):
            prune(copy)
        content = inspect(copy, check=check)
        file.move_into_place(copy, target)
    except (OSError, Refused) as error:
        copy.unlink(missing_ok=True)
        raise _failure(error) from error
    return content.revision


def _failure(error: Exception) -> StorageFailed:
    # SQLite does not always attach its message to the step that failed.
    cause = type(error).__name__ if str(error) == "not an error" else str(error)
    return StorageFailed(f"the backup was not made: {cause}; the store itself is not affected")


def _remove(copy: Path) -> None:
    # A disk that failed the copy may fail this too; the file name will be reused.
    with contextlib.suppress(OSError):
        copy.unlink(missing_ok=True)


def _settle(order: Order, failure: LabError | None) -> None:
    if order.done.done():
        return
    if failure is None:
        order.done.set_result(None)
    else:
        order.done.set_exception(failure)


REVISION_LEAP = 10**12
"""More than can have been issued since the backup: three years of 10,000 a second."""


def rebuild(backup: Path, target: Path, *, check: Check = anything) -> Content:
    """Write the database of a backup to ``target``; returns its content.

    Raises ``Refused`` and leaves no file when the backup is invalid.
    """
    inspect(backup, check=check)
    try:
        with file.refusals(target):
            file.make_private(target)
            shutil.copyfile(backup, target)
            prune(target, leap=REVISION_LEAP)
        return inspect(target, check=check)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
