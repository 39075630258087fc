"""Values that know what they are, so that nothing half written passes for whole."""

from __future__ import annotations

import zlib

from bullpen.store.base import Encode


def sealed(key: str, filling: bytes) -> Encode:
    """Bytes that say which key and revision they belong to, under a checksum."""

    def encode(revision: int) -> bytes:
        body = b"%s %d %s" % (key.encode(), revision, filling)
        return b"%08x %s" % (zlib.crc32(body), body)

    return encode


def checksum(key: str, revision: int, value: bytes) -> str:
    """The checksum of a sealed value; fails if it is not whole or not where it belongs."""
    seal, body = value.split(b" ", 1)
    assert int(seal, 16) == zlib.crc32(body), f"{key} is torn at revision {revision}"
    assert body.startswith(b"%s %d " % (key.encode(), revision)), f"{key} holds {body[:60]!r}"
    return seal.decode()
