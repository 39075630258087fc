"""Commits to the store: one change each, durable before it is reported.

A commit that finds the store further than its caller returns None: look again
and try anew. A commit that would change nothing makes no revision, but still
waits until the state it found is durable: nobody is told of something a crash
could undo.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from bullpen.api.document import Document, encode
from bullpen.errors import AlreadyExists, Conflict, Gone, NotFound
from bullpen.registry.documents import Documents
from bullpen.registry.walking import same
from bullpen.store.base import ABSENT, Entry, Store, Watch

Foresight = Callable[[str, Entry | None], None]
"""Told a key and what the next write to it builds on, as soon as that is decided."""


class Commits:
    def __init__(self, store: Store, documents: Documents) -> None:
        self._store = store
        self._documents = documents
        self.foresights: list[Foresight] = []
        # As many as the store has accepted and not finished, which it bounds.
        self._unfinished: dict[str, asyncio.Future[Entry]] = {}

    async def create(self, key: str, new: Document, *, dry_run: bool = False) -> bytes | None:
        """The stored bytes of a new object; None if the key is taken."""
        if self._store.head(key) is not None:
            return None
        stamp = self._documents.stamper(new)
        if dry_run:
            return encode(new)
        try:
            accepted = self._store.put(key, stamp, expect=ABSENT)
        except AlreadyExists:
            return None
        return await self._durable(key, accepted)

    async def replace(
        self, head: Entry, old: Document, new: Document, *, dry_run: bool = False
    ) -> bytes | None:
        """The stored bytes of ``new``, where ``head`` holds ``old``."""
        if same(old, new):
            return await self._unchanged(head)
        stamp = self._documents.stamper(new)
        if dry_run:
            return stamp(head.revision)
        try:
            accepted = self._store.put(head.key, stamp, expect=head.revision)
        except (Conflict, NotFound):
            return None
        return await self._durable(head.key, accepted)

    async def remove(self, head: Entry, last: Document, *, dry_run: bool = False) -> bytes | None:
        """The last bytes of an object that is no more."""
        stamp = self._documents.stamper(last)
        if dry_run:
            return stamp(head.revision)
        try:
            accepted = self._store.delete(head.key, stamp, expect=head.revision)
        except (Conflict, NotFound):
            return None
        return await self._durable(head.key, accepted)

    def changes(self, prefix: str, since: int) -> Watch:
        """The store's changes after ``since``; raises ``Gone`` in Kubernetes' words."""
        current = self._store.revision
        if since > current:
            # From another data directory, or another server. Listing again sets it right.
            raise Gone(f"too large resource version: {since}, current: {current}")
        try:
            return self._store.watch(prefix, since=since)
        except Gone:
            oldest = self._store.oldest
            raise Gone(f"too old resource version: {since} ({oldest})") from None

    async def _unchanged(self, head: Entry) -> bytes | None:
        unfinished = self._unfinished.get(head.key)
        if unfinished is None:
            return head.value
        await asyncio.wait((unfinished,))
        return None

    async def _durable(self, key: str, accepted: Awaitable[Entry]) -> bytes:
        write = asyncio.ensure_future(accepted)
        self._unfinished[key] = write
        write.add_done_callback(partial(self._finish, key))
        self._foresee(key)
        # A caller that gives up waiting does not take an accepted write with it.
        entry = await asyncio.shield(write)
        return entry.value

    def _finish(self, key: str, write: asyncio.Future[Entry]) -> None:
        if self._unfinished.get(key) is write:
            del self._unfinished[key]
        # The caller may be gone; nobody else need hear of an error, but of what now stands.
        if not write.cancelled() and write.exception() is not None:
            self._foresee(key)

    def _foresee(self, key: str) -> None:
        for foresight in self.foresights:
            foresight(key, self._store.head(key))
