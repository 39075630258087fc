"""Decompressing what a lessee sends, a bounded piece at a time.

A few kilobytes can decompress to gigabytes. Jumpstarter's own streams decompress each chunk
at once; these ask for no more than they can hold, whatever the chunk contains.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

from jumpstarter.streams.encoding import (
    SIGNATURE_BUFFER_SIZE,
    Compression,
    create_decompressor,
    detect_compression_from_signature,
)

PIECE_BYTES_MAX = 1 << 20
"""The most that is decompressed before it is written."""

XZ_MEMORY_BYTES_MAX = 128 << 20
"""An image packed with the largest preset of xz needs half of it."""


class Decompressor(Protocol):
    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What ``data`` continues, in pieces of at most ``PIECE_BYTES_MAX``."""


class _Zlib:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=47)  # gzip or zlib, whichever it is

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while data and not self._inner.eof:
            yield self._inner.decompress(data, PIECE_BYTES_MAX)
            data = self._inner.unconsumed_tail


class _Buffered:
    """Those decompressors that keep the input they have not used yet."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while not self._inner.eof:
            yield self._inner.decompress(data, PIECE_BYTES_MAX)
            data = b""
            if self._inner.needs_input:
                return


def decompressor(compression: Compression) -> Decompressor:
    if compression is Compression.GZIP:
        return _Zlib()
    if compression is Compression.XZ:
        return _Buffered(lzma.LZMADecompressor(memlimit=XZ_MEMORY_BYTES_MAX))
    return _Buffered(create_decompressor(compression))


async def decompressed(
    source: AsyncIterator[bytes], compression: Compression | None
) -> AsyncIterator[bytes]:
    """``source`` without the compression it was sent with. Raises ``ValueError`` on damage."""
    if compression is None:
        async for chunk in source:
            yield chunk
        return
    inner = decompressor(compression)
    async for chunk in source:
        try:
            for piece in inner.pieces(chunk):
                yield piece
        except Exception as error:  # each library has errors of its own
            raise ValueError(f"the {compression} data is damaged: {error}") from None


async def unpacked(source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """``source`` without the compression that its first bytes show, if they show one."""
    beginning = b""
    async for chunk in source:
        beginning += chunk
        if len(beginning) >= SIGNATURE_BUFFER_SIZE:
            break
    compression = detect_compression_from_signature(beginning)
    async for piece in decompressed(_rejoined(beginning, source), compression):
        yield piece


async def _rejoined(beginning: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield beginning
    async for chunk in rest:
        yield chunk
