"""Documents as stored bytes, which contain the revision that wrote them.

A document is encoded once, with a gap for its ``resourceVersion``; the store provides the
revision when it accepts the write.
"""

from __future__ import annotations

from collections.abc import Callable

from bullpen.api.document import Document, decode, encode
from bullpen.errors import TooLarge
from bullpen.registry.options import OBJECT_BYTES_MAX

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
