"""Stored objects as documents, read once.

What is written is read again at once: by the next write to the same object, and
by everybody who watches it. A document never changes, so they share one, and
with it the sections that the next state takes over from it.
"""

from __future__ import annotations

from collections.abc import Callable

from bullpen.api.document import Document, decode
from bullpen.registry.stamping import stamped, stamper

KEPT_MAX = 2_000
"""Documents held beside their bytes; the oldest goes first."""


class Documents:
    def __init__(self) -> None:
        self._kept: dict[bytes, Document] = {}

    def of(self, value: bytes) -> Document:
        """The document in ``value``. Nobody may edit it."""
        found = self._kept.get(value)
        if found is None:
            found = decode(value)
            self._keep(value, found)
        return found

    def stamper(self, document: Document) -> Callable[[int], bytes]:
        """As ``stamping.stamper``; what is stamped need not be decoded later."""
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
