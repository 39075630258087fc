"""From documents to stored bytes and back, one commit at a time.

Stored objects as documents, decoded once. A written object is read again soon: by the next
write to it, and by all its watchers. A document is immutable, so they share one, and the
next state shares the unchanged sections.

Documents as stored bytes, which contain the revision that wrote them. A document is encoded
once, with a gap for its ``resourceVersion``; the store provides the revision when it
accepts the write.

Commits to the store: one change each, durable before it is reported. If the store has a
newer state than the caller, a commit returns None: read again and retry. A commit that
would change nothing creates no revision, but still waits until the state it found is
durable: no caller is told of a state that a crash could undo.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from bullpen.api.paths import Document, decode, encode
from bullpen.errors import AlreadyExists, Conflict, Gone, NotFound, TooLarge
from bullpen.registry.managed_fields import same
from bullpen.registry.options import OBJECT_BYTES_MAX
from bullpen.store.base import ABSENT, Entry, Store, Watch

KEPT_MAX = 2_000
"""Decoded documents that are cached; the oldest is dropped first."""


class Documents:
    def __init__(self) -> None:
        self._kept: dict[bytes, Document] = {}

    def of(self, value: bytes) -> Document:
        """The document in ``value``. It must not be edited."""
        found = self._kept.get(value)
        if found is None:
            found = decode(value)
            self._keep(value, found)
        return found

    def stamper(self, document: Document) -> Callable[[int], bytes]:
        """As ``stamping.stamper``; the stamped bytes need not be decoded later."""
        stamp = stamper(document)

        def keep(revision: int) -> bytes:
            value = stamp(revision)
            self._keep(value, stamped(document, revision))
            return value

        return keep

    def _keep(self, value: bytes, document: Document) -> None:
        self._kept[value] = document
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]


_REVISION_DIGITS_MAX = 20


def stamper(document: Document) -> Callable[[int], bytes]:
    """A function from a revision to the bytes of ``document`` at that revision.

    Raises ``TooLarge`` for an object over the limit.
    """
    metadata = {k: v for k, v in document["metadata"].items() if k != "resourceVersion"}
    rest = _rest(document)
    identity = encode({"apiVersion": document["apiVersion"], "kind": document["kind"]})
    head = identity[:-1] + b',"metadata":' + encode(metadata)[:-1] + b',"resourceVersion":"'
    tail = b'"},' + encode(rest)[1:] if rest else b'"}}'
    if len(head) + len(tail) + _REVISION_DIGITS_MAX > OBJECT_BYTES_MAX:
        raise TooLarge(f"Request entity too large: limit is {OBJECT_BYTES_MAX}")

    def stamp(revision: int) -> bytes:
        return head + str(revision).encode() + tail

    return stamp


def stamped(document: Document, revision: int) -> Document:
    """The document in the bytes that a stamper produces."""
    identity = {"apiVersion": document["apiVersion"], "kind": document["kind"]}
    metadata = {k: v for k, v in document["metadata"].items() if k != "resourceVersion"}
    metadata["resourceVersion"] = str(revision)
    return {**identity, "metadata": metadata, **_rest(document)}


def restamped(value: bytes, revision: int) -> bytes:
    """The object in ``value`` with another resourceVersion."""
    return encode(stamped(decode(value), revision))


def _rest(document: Document) -> Document:
    return {k: v for k, v in document.items() if k not in ("apiVersion", "kind", "metadata")}


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
