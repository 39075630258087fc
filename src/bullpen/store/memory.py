"""A store without persistence, for tests and the simulator.

It differs from the SQLite store only in what durable means: a write is durable on the next
turn of the event loop. No thread, no file, no clock.
"""

from __future__ import annotations

from bullpen.store.journaled import Batch, JournaledStore, Listener
from bullpen.store.ledger import Ledger
from bullpen.store.limits import DEFAULT_LIMITS, Limits


class MemoryStore(JournaledStore):
    def __init__(self, *, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(Ledger(limits), _Nowhere, limits)


class _Nowhere:
    """A journal that stores nothing. The store submits on the turn after the write."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def submit(self, batch: Batch) -> None:
        self._listener.committed(len(batch.writes))

    def close(self) -> None:
        self._listener.closed()
