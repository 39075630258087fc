"""Stores made of a ledger and a journal, the one without persistence included.

A store made of a ledger, a fan-out and a journal that makes writes durable. Accepted writes
are collected until the event loop has run everything that is ready, handed to the journal
as one batch, and acknowledged when the journal reports them. This module keeps the order;
the journal defines what durable means.

A store without persistence, for tests and the simulator. It differs from the SQLite store
only in what durable means: a write is durable on the next turn of the event loop. No
thread, no file, no clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from bullpen.errors import StorageFailed, Unavailable
from bullpen.store.base import WATCH_BUFFER_MAX, Encode, Entry, Page, Watch
from bullpen.store.fanout import Fanout
from bullpen.store.history import DEFAULT_LIMITS, Forgotten, Limits, Write
from bullpen.store.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Batch:
    """Accepted writes to be made durable, and history that may be deleted."""

    writes: list[Write]
    forgotten: list[Forgotten]
    attempt: int
    """Incremented with every failure. A failed attempt fails all of its batches."""


class Journal(Protocol):
    """Makes batches durable, in order, and reports to a ``Listener`` on its event loop."""

    def submit(self, batch: Batch) -> None: ...

    def close(self) -> None:
        """Finish everything submitted, release all resources, then report ``closed``."""


class Listener(Protocol):
    def committed(self, count: int) -> None:
        """The ``count`` oldest submitted writes are durable."""

    def failed(self, cause: str) -> None:
        """No write of this attempt that was not reported as committed is durable."""

    def closed(self) -> None:
        """The journal has ended. Writes not reported as committed never will be."""


class JournaledStore:
    """The ``Store`` contract over a ``Journal``, for which it is the ``Listener``."""

    def __init__(
        self, ledger: Ledger, connect: Callable[[Listener], Journal], limits: Limits
    ) -> None:
        self._ledger = ledger
        self._fanout = Fanout(revision=ledger.revision, watches_max=limits.watches_max)
        self._outbox: list[Write] = []
        # The first belongs to the oldest pending write; bounded with the ledger's pending writes.
        self._waiting: deque[asyncio.Future[Entry]] = deque()
        self._forgotten = ledger.trim()
        self._attempt = 0
        self._closed: asyncio.Future[None] | None = None
        self._journal = connect(self)

    @property
    def revision(self) -> int:
        return self._ledger.revision

    @property
    def oldest(self) -> int:
        return self._ledger.oldest

    def get(self, key: str) -> Entry | None:
        return self._ledger.get(key)

    def head(self, key: str) -> Entry | None:
        return self._ledger.head(key)

    def scan(
        self, prefix: str, *, after: str = "", limit: int | None = None, at: int | None = None
    ) -> Page:
        return self._ledger.scan(prefix, after, limit, at)

    def warm(self, prefix: str) -> Page:
        return self._ledger.warm(prefix)

    def put(self, key: str, encode: Encode, *, expect: int) -> Awaitable[Entry]:
        self._check_open()
        return self._enqueue(self._ledger.put(key, encode, expect))

    def delete(self, key: str, encode: Encode, *, expect: int) -> Awaitable[Entry]:
        self._check_open()
        return self._enqueue(self._ledger.delete(key, encode, expect))

    def watch(self, prefix: str, *, since: int, buffer_max: int = WATCH_BUFFER_MAX) -> Watch:
        self._check_open()
        return self._fanout.watch(prefix, self._ledger.since(since), buffer_max)

    async def close(self) -> None:
        if self._closed is None:
            self._closed = asyncio.get_running_loop().create_future()
            self._flush()
            self._journal.close()
        await asyncio.shield(self._closed)

    def committed(self, count: int) -> None:
        writes = self._ledger.commit(count)
        self._forgotten += self._ledger.trim()
        self._fanout.dispatch([write.change for write in writes])
        for write in writes:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(write.entry)

    def failed(self, cause: str) -> None:
        self._ledger.rollback()
        self._attempt += 1
        self._outbox.clear()
        failed, self._waiting = self._waiting, deque()
        for future in failed:
            if not future.done():
                future.set_exception(_failure(cause))

    def closed(self) -> None:
        self.failed("the store has been closed")
        self._fanout.close()
        if self._closed is None:
            self._closed = asyncio.get_running_loop().create_future()
        self._closed.set_result(None)

    def _enqueue(self, write: Write) -> Awaitable[Entry]:
        loop = asyncio.get_running_loop()
        if not self._outbox:
            loop.call_soon(self._flush)
        self._outbox.append(write)
        future: asyncio.Future[Entry] = loop.create_future()
        self._waiting.append(future)
        return future

    def _flush(self) -> None:
        # It is empty if a failure or close() came first.
        if self._outbox:
            batch = Batch(self._outbox, self._forgotten, self._attempt)
            self._outbox, self._forgotten = [], []
            self._journal.submit(batch)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise Unavailable("the store is closed")


def _failure(cause: str) -> StorageFailed:
    return StorageFailed(
        f"the write did not happen, because the disk refused it: {cause}; "
        "writing resumes by itself once the disk accepts data again"
    )


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
