"""Commits to the store: one change each, durable before it is reported.

If the store has a newer state than the caller, a commit returns None: read again and retry.
A commit that would change nothing creates no revision, but still waits until the state it
found is durable: no caller is told of a state that a crash could undo.
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
"""Called with a key and the state its next write builds on, as soon as that is decided."""


class Commits:
    def __init__(self, store: Store, documents: Documents) -> None:
        self._store = store
        self._documents = documents
        self.foresights: list[Foresight] = []
        # As many as the store has accepted and not finished, which the store limits.
        self._unfinished: dict[str, asyncio.Future[Entry]] = {}

    async def create(self, key: str, new: Document, *, dry_run: bool = False) -> bytes | None:
        """The stored bytes of a new object; None if the key exists."""
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
        """The last bytes of a removed object."""
        stamp = self._documents.stamper(last)
        if dry_run:
            return stamp(head.revision)
        try:
            accepted = self._store.delete(head.key, stamp, expect=head.revision)
        except (Conflict, NotFound):
            return None
        return await self._durable(head.key, accepted)

    def changes(self, prefix: str, since: int) -> Watch:
        """The store's changes after ``since``; raises ``Gone`` with Kubernetes' message."""
        current = self._store.revision
        if since > current:
            # The revision is of another data directory or server. A new list fixes it.
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
        # A caller that stops waiting does not cancel an accepted write.
        entry = await asyncio.shield(write)
        return entry.value

    def _finish(self, key: str, write: asyncio.Future[Entry]) -> None:
        if self._unfinished.get(key) is write:
            del self._unfinished[key]
        # The caller may be gone and gets the error if not; listeners need the state that now holds.
        if not write.cancelled() and write.exception() is not None:
            self._foresee(key)

    def _foresee(self, key: str) -> None:
        for foresight in self.foresights:
            foresight(key, self._store.head(key))
