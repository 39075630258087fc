"""Decompresses data from a lessee in bounded pieces.

A few kilobytes can decompress to gigabytes. Jumpstarter's own streams decompress each chunk
at once; these never produce more than a fixed amount at a time, whatever the chunk
contains.
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
"""An image compressed with the largest preset of xz needs half of it."""


class Decompressor(Protocol):
    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Decompress ``data``, in pieces of at most ``PIECE_BYTES_MAX``."""


class _Zlib:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=47)  # accepts gzip and zlib

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while data and not self._inner.eof:
            yield self._inner.decompress(data, PIECE_BYTES_MAX)
            data = self._inner.unconsumed_tail


class _Buffered:
    """Decompressors that buffer unused input themselves."""

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
    """Decompress ``source``. Raises ``ValueError`` if it is damaged."""
    if compression is None:
        async for chunk in source:
            yield chunk
        return
    inner = decompressor(compression)
    async for chunk in source:
        try:
            for piece in inner.pieces(chunk):
                yield piece
        except Exception as error:  # each library has its own exceptions
            raise ValueError(f"the {compression} data is damaged: {error}") from None


async def unpacked(source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Decompress ``source`` if its first bytes show a known compression."""
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
