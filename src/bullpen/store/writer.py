"""The thread that owns the database: takes all queued writes, commits and reports once.

Writes accepted during one commit go into the next, so the busier the store, the more writes
share a sync. When a commit fails, all writes accepted before the event loop learns of it
fail too, because a later write may build on an earlier one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread

import apsw

from bullpen.store.copying import Copier, Order
from bullpen.store.database import Database
from bullpen.store.journaled import Batch, Listener

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
