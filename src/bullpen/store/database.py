"""The file: a log of changes in SQLite, owned by one process.

One row per change and nothing else: replaying the log gives the state. A row is deleted
when the change that superseded it is no longer retained, so the file holds the current
objects plus the bounded history. Calls block and come from one thread at a time; nothing
here knows about event loops.
"""

from __future__ import annotations

import contextlib
from collections import deque
from itertools import islice
from pathlib import Path

import apsw

from bullpen.store import file, inspecting
from bullpen.store.copying import Copy
from bullpen.store.history import Forgotten, Write
from bullpen.store.ledger import Ledger
from bullpen.store.limits import Limits
from bullpen.store.lock import FileLock
from bullpen.store.replay import Check, anything, row

TRIM_AHEAD_MAX = 500
"""Forgotten changes a commit deletes beyond the number it adds, at two rows each."""

CHECKPOINT_PAGES = 1000
"""Pages in the write-ahead log from which on an idle writer checkpoints."""

CHECKPOINT_FACTOR = 4
"""How much longer the log may become while writes continue."""

_UPDATE_OLDEST = "UPDATE meta SET value = ? WHERE name = 'oldest'"
_INSERT = "INSERT INTO log VALUES (?, ?, ?, ?)"
_DELETE = "DELETE FROM log WHERE revision = ?"


class Database:
    def __init__(self, connection: apsw.Connection, lock: FileLock) -> None:
        self._connection = connection
        self._lock = lock
        self._forgotten: deque[Forgotten] = deque()
        self._wal_pages = 0
        connection.set_wal_hook(self._note_wal_pages)

    @classmethod
    def open(
        cls, path: Path, *, limits: Limits, vfs: str | None = None, check: Check = anything
    ) -> tuple[Database, Ledger]:
        """Open or create the database at ``path`` exclusively, and load it.

        Raises ``Refused`` and releases everything when that fails.
        """
        with contextlib.ExitStack() as undo:
            lock = file.take_lock(path)
            undo.callback(lock.release)
            connection = file.open_or_create(path, vfs)
            undo.callback(file.leave, connection, path)
            ledger = inspecting.load(connection, path, limits, check)
            file.trust(connection)
            undo.pop_all()
        return cls(connection, lock), ledger

    def forget(self, forgotten: list[Forgotten]) -> None:
        """Delete these changes, oldest first, a bounded number with each commit from now on."""
        self._forgotten.extend(forgotten)

    def commit(self, writes: list[Write]) -> None:
        """Make the writes durable, all or none of them. Raises ``apsw.Error``."""
        trimmed = list(islice(self._forgotten, _trim_count(len(writes))))
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            self._connection.executemany(_INSERT, map(row, writes))
            self._trim(trimmed)
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise
        for _ in trimmed:
            self._forgotten.popleft()

    @property
    def checkpoint_due(self) -> bool:
        """Whether the write-ahead log should be checkpointed as soon as no write is waiting."""
        return self._wal_pages >= CHECKPOINT_PAGES

    def checkpoint(self, *, idle: bool) -> None:
        """Checkpoint the write-ahead log if it is due. Raises ``apsw.Error``; retry later.

        Writers would wait for it, so unless they are ``idle`` the log may grow for a while.
        """
        if self._wal_pages >= (CHECKPOINT_PAGES if idle else CHECKPOINT_PAGES * CHECKPOINT_FACTOR):
            self._connection.wal_checkpoint()
            self._wal_pages = 0

    def copy(self, target: Path) -> Copy:
        """Start a copy that includes changes committed while it runs."""
        return Copy(self._connection, target)

    def close(self) -> None:
        try:
            self._connection.close()
        finally:
            self._lock.release()

    def _trim(self, trimmed: list[Forgotten]) -> None:
        if trimmed:
            revisions = sorted(revision for each in trimmed for revision in each.unneeded)
            self._connection.executemany(_DELETE, ((revision,) for revision in revisions))
            self._connection.execute(_UPDATE_OLDEST, (trimmed[-1].revision,))

    def _note_wal_pages(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK


def _trim_count(writes: int) -> int:
    """How many forgotten changes a commit of that size deletes.

    More than it adds, so that the backlog shrinks; not much more, so that no write waits for
    the cleanup.
    """
    return writes + min(writes + 16, TRIM_AHEAD_MAX)
