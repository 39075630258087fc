"""A store with a simulated disk: it is slow, hangs, fills up, and survives a crash.

Writes that were accepted but not committed when the process dies may or may not exist
afterwards, a whole batch at a time and in order, as with SQLite's log.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable

from bullpen.store.base import Change, Verb
from bullpen.store.history import Limits, Past
from bullpen.store.journaled import Batch, JournaledStore, Listener
from bullpen.store.ledger import Ledger
from bullpen.store.packing import Kept

Committed = Callable[[list[Change]], None]


class Disk:
    """The durable state."""

    def __init__(self, chance: random.Random, committed: Committed, *, history: int) -> None:
        self.limits = Limits(history_count_max=history)
        self.delay_max = 0.0
        self.stuck_until = 0.0
        self.full_until = 0.0
        self._chance = chance
        self._committed = committed
        self._entries: dict[str, Kept] = {}
        self._history: deque[Past] = deque(maxlen=history)
        self._oldest = 0

    def open(self) -> DiskStore:
        """The store of a new process."""
        ledger = Ledger(
            self.limits,
            oldest=self._oldest,
            entries=dict(self._entries),
            history=tuple(self._history),
        )
        return DiskStore(self, ledger)

    def stuck(self, seconds: float) -> None:
        """Commit nothing for this long."""
        until = asyncio.get_running_loop().time() + seconds
        self.stuck_until = max(until, self.stuck_until)

    def delay(self) -> float:
        """The duration of the next commit."""
        stuck = self.stuck_until - asyncio.get_running_loop().time()
        return max(0.0, stuck) + self._chance.uniform(0, self.delay_max)

    @property
    def full(self) -> bool:
        return asyncio.get_running_loop().time() < self.full_until

    def keep(self, batch: Batch) -> None:
        """A batch has become durable."""
        for write in batch.writes:
            if write.change.verb is Verb.DELETED:
                del self._entries[write.change.key]
            else:
                self._entries[write.change.key] = write.kept
            if self._history.maxlen and len(self._history) == self._history.maxlen:
                self._oldest = self._history[0].revision
            self._history.append(write.past)
        self._committed([write.change for write in batch.writes])

    def crash(self, pending: deque[Batch]) -> None:
        """The process died; a prefix of the pending batches may have become durable."""
        for _ in range(self._chance.randint(0, len(pending))):
            self.keep(pending.popleft())
        pending.clear()


class DiskStore(JournaledStore):
    def __init__(self, disk: Disk, ledger: Ledger) -> None:
        super().__init__(ledger, self._connect, disk.limits)
        self._disk = disk
        self._spindle.disk = disk

    def _connect(self, listener: Listener) -> _Spindle:
        self._spindle = _Spindle(listener)
        return self._spindle

    def crash(self) -> None:
        """No later write of this store reaches the disk."""
        self._disk.crash(self._spindle.pending)
        self._spindle.dead = True
        # Remote watchers notice it; what the dead process itself receives does no harm.
        self._fanout.close()


class _Spindle:
    """A journal that commits one batch after the other."""

    disk: Disk

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.pending: deque[Batch] = deque()
        self.dead = False

    def submit(self, batch: Batch) -> None:
        if self.dead:
            return
        self.pending.append(batch)
        if len(self.pending) == 1:
            self._start()

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        delay = self.disk.delay()
        if delay > 0:
            loop.call_later(delay, self._commit)
        else:
            loop.call_soon(self._commit)

    def _commit(self) -> None:
        if self.dead:
            return
        if self.disk.full:
            self.pending.clear()
            self._listener.failed("no space left on device")
            return
        batch = self.pending.popleft()
        self.disk.keep(batch)
        self._listener.committed(len(batch.writes))
        if self.pending:
            self._start()

    def close(self) -> None:
        self._listener.closed()
