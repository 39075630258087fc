"""Stored objects as documents, decoded once.

A written object is read again soon: by the next write to it, and by all its watchers. A
document is immutable, so they share one, and the next state shares the unchanged sections.
"""

from __future__ import annotations

from collections.abc import Callable

from bullpen.api.document import Document, decode
from bullpen.registry.stamping import stamped, stamper

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
