"""Compressed images are unpacked whole, a bounded piece at a time."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import AsyncIterator, Callable

import pytest
from backports import zstd
from jumpstarter.streams.encoding import Compression

from bullpen.drivers.flasher import PIECE_BYTES_MAX, decompressed, unpacked

ZEROES = bytes(40 * PIECE_BYTES_MAX)
PACKERS: dict[Compression, Callable[[bytes], bytes]] = {
    Compression.GZIP: gzip.compress,
    Compression.XZ: lzma.compress,
    Compression.BZ2: bz2.compress,
    Compression.ZSTD: zstd.compress,
}


async def chunks(data: bytes, length: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), length):
        yield data[start : start + length]


@pytest.mark.parametrize("compression", PACKERS)
@pytest.mark.parametrize("length", [3, 65536])
async def test_what_was_packed_comes_out_whole(compression: Compression, length: int) -> None:
    content = b"some content, " * 20000
    packed = PACKERS[compression](content)
    found = [piece async for piece in unpacked(chunks(packed, length))]
    assert b"".join(found) == content
    named = [piece async for piece in decompressed(chunks(packed, length), compression)]
    assert b"".join(named) == content


@pytest.mark.parametrize("compression", PACKERS)
async def test_no_piece_is_larger_than_the_bound(compression: Compression) -> None:
    packed = PACKERS[compression](ZEROES)
    total = 0
    async for piece in unpacked(chunks(packed, 1 << 20)):
        assert len(piece) <= PIECE_BYTES_MAX
        total += len(piece)
    assert total == len(ZEROES)


async def test_what_is_not_packed_passes_unchanged() -> None:
    for content in (b"", b"x", b"plain" * 1000):
        assert b"".join([piece async for piece in unpacked(chunks(content, 4))]) == content


@pytest.mark.parametrize("compression", PACKERS)
async def test_damaged_data_is_refused(compression: Compression) -> None:
    packed = bytearray(PACKERS[compression](b"some content" * 100))
    packed[12:40] = bytes(28)
    with pytest.raises(ValueError, match="damaged"):
        async for _ in decompressed(chunks(bytes(packed), 64), compression):
            pass
