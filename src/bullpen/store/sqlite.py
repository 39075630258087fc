"""The durable store over SQLite.

The file: a log of changes in SQLite, owned by one process. One row per change and nothing
else: replaying the log gives the state. A row is deleted when the change that superseded it
is no longer retained, so the file holds the current objects plus the bounded history. Calls
block and come from one thread at a time; nothing here knows about event loops.

The thread that owns the database: takes all queued writes, commits and reports once. Writes
accepted during one commit go into the next, so the busier the store, the more writes share
a sync. When a commit fails, all writes accepted before the event loop learns of it fail
too, because a later write may build on an earlier one.

The durable store: a ledger in memory, a log in SQLite, one writer thread. Reads never touch
the disk. A write is acknowledged after the transaction it shares with others has been
synced. A failed write did not happen, with one exception that cannot be excluded: the disk
took the data, failed to sync it, and the process died before the next commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count, islice
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

import apsw

from bullpen.errors import TooManyRequests, Unavailable
from bullpen.store import copies, file
from bullpen.store.copies import Copier, Copy, Order
from bullpen.store.file import FileLock
from bullpen.store.history import DEFAULT_LIMITS, Forgotten, Limits, Write
from bullpen.store.journaled import Batch, JournaledStore, Listener
from bullpen.store.ledger import Check, Ledger, anything, row
from bullpen.store.packing import Cold, nothing_is_cold

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
        cls,
        path: Path,
        *,
        limits: Limits,
        vfs: str | None = None,
        check: Check = anything,
        cold: Cold = nothing_is_cold,
    ) -> tuple[Database, Ledger]:
        """Open or create the database at ``path`` exclusively, and load it.

        Raises ``Refused`` and releases everything when that fails.
        """
        with contextlib.ExitStack() as undo:
            lock = file.take_lock(path)
            undo.callback(lock.release)
            connection = file.open_or_create(path, vfs)
            undo.callback(file.leave, connection, path)
            ledger = copies.load(connection, path, limits, check, cold)
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


log = logging.getLogger(__name__)


class Stop:
    """The last job of a writer."""


Job = Batch | Order | Stop


IDLE_SECONDS = 0.02
"""Idle time before a checkpoint."""

RETRY_SECONDS = 1.0


class Trouble:
    """A temporary failure. Logged when it begins and when it has passed."""

    def __init__(self, begins: str, ends: str) -> None:
        self._begins = begins
        self._ends = ends
        self.lasting = False

    def met(self, error: Exception) -> None:
        if not self.lasting:
            log.warning(self._begins, extra={"cause": repr(error)})
        self.lasting = True

    def passed(self) -> None:
        if self.lasting:
            log.info(self._ends)
        self.lasting = False


class Writer:
    """A ``Journal``. Its queue is bounded by the ledger's limit on pending writes."""

    def __init__(self, database: Database, listener: Listener) -> None:
        self._database = database
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[Job] = SimpleQueue()
        self._failed_attempt = -1
        self._commits = Trouble("commits fail", "commits succeed again")
        self._checkpoints = Trouble("checkpoints fail", "checkpoints succeed again")
        self._orphaned = False
        self._copier = Copier(database, self._post)
        # A daemon thread, because an interrupted commit is as safe as a crash, and a process that
        # cannot exit is not.
        self._thread = Thread(target=self._run, name="bullpen-store", daemon=True)
        self._thread.start()

    def submit(self, batch: Batch) -> None:
        self._inbox.put(batch)

    def copy(self, order: Order) -> None:
        self._inbox.put(order)

    def close(self) -> None:
        self._inbox.put(Stop())

    def _run(self) -> None:
        # Also when a bug ends this thread, so that no caller waits for ever.
        with contextlib.ExitStack() as last:
            last.callback(self._post, self._ended)
            last.callback(self._close)
            last.callback(self._copier.stop)
            while self._serve(self._take()):
                pass

    def _close(self) -> None:
        try:
            self._database.close()
        except apsw.Error as error:
            # Nothing is lost: pages that were not checkpointed are in the write-ahead log.
            log.warning("the last checkpoint failed", extra={"cause": repr(error)})

    def _take(self) -> list[Job]:
        """All queued jobs; waits for one unless there is other work."""
        taken: list[Job] = []
        if not self._copier.busy:
            try:
                taken.append(self._inbox.get(timeout=self._patience()))
            except Empty:
                return []
        while True:
            try:
                taken.append(self._inbox.get_nowait())
            except Empty:
                return taken

    def _patience(self) -> float | None:
        """How long to wait for work before a checkpoint; None for ever."""
        if not self._database.checkpoint_due:
            return None
        return RETRY_SECONDS if self._checkpoints.lasting else IDLE_SECONDS

    def _serve(self, taken: list[Job]) -> bool:
        """Process the jobs, then some deferred work. False once told to stop."""
        self._commit([item for item in taken if isinstance(item, Batch)])
        self._checkpoint(idle=not taken)
        for item in taken:
            if isinstance(item, Order):
                self._copier.begin(item)
        self._copier.step()
        return not self._orphaned and not any(isinstance(item, Stop) for item in taken)

    def _commit(self, batches: list[Batch]) -> None:
        for batch in batches:
            self._database.forget(batch.forgotten)
        live = [batch for batch in batches if batch.attempt > self._failed_attempt]
        writes = [write for batch in live for write in batch.writes]
        if not writes:
            return
        try:
            self._database.commit(writes)
        except Exception as error:  # any error must be reported to the caller
            self._commits.met(error)
            self._failed_attempt = live[-1].attempt
            cause = str(error)
            self._post(lambda: self._listener.failed(cause))
        else:
            self._commits.passed()
            self._post(lambda: self._listener.committed(len(writes)))

    def _checkpoint(self, *, idle: bool) -> None:
        try:
            self._database.checkpoint(idle=idle)
        except apsw.Error as error:
            # Nothing is lost: the write-ahead log is kept, and the next commit tries again.
            self._checkpoints.met(error)
        else:
            self._checkpoints.passed()

    def _post(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            # The loop was closed while the store was open, so there is no caller to report to.
            self._orphaned = True

    def _ended(self) -> None:
        self._thread.join()
        self._listener.closed()


class SqliteStore(JournaledStore):
    """Created by ``open``; released by ``close``."""

    def __init__(
        self, database: Database, ledger: Ledger, limits: Limits, check: Check = anything
    ) -> None:
        self._check = check
        self._writer = Writer(database, self)
        self._copy: asyncio.Future[None] | None = None
        self._copies = count(1)
        super().__init__(ledger, lambda _: self._writer, limits)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        limits: Limits = DEFAULT_LIMITS,
        vfs: str | None = None,
        check: Check = anything,
        cold: Cold = nothing_is_cold,
    ) -> SqliteStore:
        """Open or create the database at ``path`` exclusively.

        Raises ``Refused``, with advice, when the file is in use or was created by another version,
        and ``Damaged`` when it is damaged or not ours; every value in it has to pass ``check``.
        ``vfs`` names the SQLite file system to use instead of the operating system's. ``cold``
        values are compressed.
        """
        load = partial(Database.open, path, limits=limits, vfs=vfs, check=check, cold=cold)
        opening = asyncio.get_running_loop().run_in_executor(None, load)
        try:
            database, ledger = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_discard)
            raise
        return cls(database, ledger, limits, check)

    async def backup(self, path: Path) -> int:
        """Write a consistent copy to ``path`` and return its newest revision.

        The copy contains at least what was durable at the call, has been read back and verified,
        and replaces an older file at ``path`` atomically. Raises ``StorageFailed`` when it could
        not be made and ``TooManyRequests`` while another copy is in progress.
        """
        self._check_open()
        if self._copy is not None and not self._copy.done():
            raise TooManyRequests("a backup is already being made; wait for it")
        # Copies never share a file, even if an aborted one still exists.
        unfinished = path.with_name(f"{path.name}.partial{next(self._copies)}")
        self._copy = asyncio.get_running_loop().create_future()
        self._writer.copy(Order(unfinished, self._copy))
        try:
            await self._copy
            return await asyncio.to_thread(copies.publish, unfinished, path, self._check)
        except asyncio.CancelledError:
            # The writer removes unfinished copies; this removes the others.
            unfinished.unlink(missing_ok=True)
            raise

    def closed(self) -> None:
        if self._copy is not None and not self._copy.done():
            self._copy.set_exception(Unavailable("the store was closed before the copy was made"))
        super().closed()


def _discard(opening: asyncio.Future[tuple[Database, Ledger]]) -> None:
    """The caller was cancelled; close what was opened for it."""
    if not opening.cancelled() and opening.exception() is None:
        database, _ = opening.result()
        database.close()
