"""Values that are rarely read, compressed in memory and in the file.

Most objects of a lab are ended leases: each is read once or never, and all of them are much
alike. Compressed with a dictionary they take a tenth of their size. The caller of a store
says which values are cold; readers get every value as it was written.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

from bullpen.store.base import Entry

Cold = Callable[[str, bytes], bool]
"""Whether the value of a key is hardly ever read again."""

DICTIONARY = (
    b'{"apiVersion":"jumpstarter.dev/v1alpha1","kind":"Lease","metadata":{"name":"019b76da-'
    b'","namespace":"default","labels":{"board":"","metadata.jumpstarter.dev/":"",'
    b'"jumpstarter.dev/lease-ended":"true"},"creationTimestamp":"2026-01-01T00:00:00Z",'
    b'"generation":2,"uid":"","managedFields":[{"manager":"bullpen","operation":"Update",'
    b'"apiVersion":"jumpstarter.dev/v1alpha1","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":'
    b'{"f:labels":{".":{},"f:board":{},"f:jumpstarter.dev/lease-ended":{}}},"f:spec":{".":{},'
    b'"f:clientRef":{},"f:selector":{},"f:exporterRef":{},"f:tags":{},"f:beginTime":{},'
    b'"f:endTime":{},"f:duration":{},"f:release":{}}},"time":"2026-01-01T00:00:00Z"},'
    b'{"manager":"bullpen","operation":"Update","apiVersion":"jumpstarter.dev/v1alpha1",'
    b'"fieldsType":"FieldsV1","fieldsV1":{"f:status":{"f:conditions":'
    b'{"k:{\\"type\\":\\"Pending\\"}":{".":{},"f:type":{},"f:status":{},'
    b'"f:lastTransitionTime":{},"f:observedGeneration":{},"f:reason":{},"f:message":{}},'
    b'"k:{\\"type\\":\\"Ready\\"}":{".":{},"f:type":{},"f:status":{},"f:observedGeneration":{},'
    b'"f:lastTransitionTime":{},"f:reason":{},"f:message":{}}},"f:beginTime":{},'
    b'"f:exporterRef":{},"f:clientRef":{},"f:priority":{},"f:spotAccess":{},'
    b'"f:maximumDuration":{},"f:idleTimeout":{},"f:epoch":{},"f:ended":{},"f:sessions":{},'
    b'"f:endTime":{}}},"time":"2026-01-01T00:00:00Z","subresource":"status"}],'
    b'"resourceVersion":""},"spec":{"clientRef":{"name":""},"exporterRef":{"name":""},'
    b'"selector":{"matchLabels":{"board":""},"matchExpressions":[{"key":"","operator":"In",'
    b'"values":[""]}]},"tags":{"":""},"beginTime":"2026-","duration":"1h0m0s","release":true},'
    b'"status":{"beginTime":"2026-01-01T00:00:00Z","endTime":"2026-01-01T00:00:00Z",'
    b'"exporterRef":{"name":""},"clientRef":{"name":"alice"},"ended":true,"priority":0,'
    b'"spotAccess":false,"maximumDuration":"1h0m0s","epoch":2,"conditions":[{"type":'
    b'"Unsatisfiable","status":"True","reason":"NoAccess","message":"no exporter matches"},'
    b'{"type":"Pending","status":"False","observedGeneration":2,"lastTransitionTime":'
    b'"2026-01-01T00:00:00Z","reason":"Expired","message":"the lease reached its end time"},'
    b'{"type":"Ready","status":"False","observedGeneration":2,"lastTransitionTime":'
    b'"2026-01-01T00:00:00Z","reason":"Released","message":"the lease was released"}],'
    b'"sessions":[{"stream":"","client":"","startTime":"2026-01-01T00:00:00Z","endTime":'
    b'"2026-01-01T00:00:00Z","bytesFromClient":,"bytesFromExporter":}]}}'
)
"""What ended leases have in common.

It must never change: the values in the file can be read only with the same bytes.
"""

_LEVEL = 1
"""A higher level takes twice as long and saves a few bytes."""


@dataclass(frozen=True, slots=True)
class Packed:
    """The compressed bytes of a key and the revision that wrote them."""

    key: str
    data: bytes
    revision: int


Kept = Entry | Packed
"""An entry as a store keeps it."""


def nothing_is_cold(key: str, value: bytes) -> bool:
    """The ``Cold`` of a store that compresses nothing."""
    return False


def kept(entry: Entry, cold: Cold) -> Kept:
    """The entry as it is kept."""
    if not cold(entry.key, entry.value):
        return entry
    compressor = zlib.compressobj(_LEVEL, zdict=DICTIONARY)
    data = compressor.compress(entry.value) + compressor.flush()
    return Packed(entry.key, data, entry.revision)


def entry_of(found: Kept) -> Entry:
    """The entry as it was written. Raises ``ValueError`` if its data is damaged."""
    if isinstance(found, Entry):
        return found
    return Entry(found.key, unpacked(found.data), found.revision)


def size_of(found: Kept) -> int:
    """The number of bytes in which the value is kept."""
    return len(found.value if isinstance(found, Entry) else found.data)


def unpacked(data: bytes) -> bytes:
    """The value in packed data; a checksum in it is verified. Raises ``ValueError``."""
    decompressor = zlib.decompressobj(zdict=DICTIONARY)
    try:
        value = decompressor.decompress(data)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not decompressor.eof or decompressor.unused_data:
        raise ValueError("the compressed value is incomplete")
    return value
