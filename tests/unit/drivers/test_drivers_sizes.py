"""Sizes are read as they are meant and shown as people write them."""

from __future__ import annotations

import pytest

from bullpen.drivers import sizes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512M", 512 << 20),
        ("512MiB", 512 << 20),
        ("512MB", 512 * 10**6),
        ("1.5G", 3 << 29),
        ("20g", 20 << 30),
        ("2T", 2 << 40),
        ("4096", 4096),
        ("0", 0),
    ],
)
def test_a_size_is_read(text: str, expected: int) -> None:
    assert sizes.parsed(text) == expected


@pytest.mark.parametrize("text", ["", "M", "-1M", "1e3", "0x10", "1M\n", "1M,x=y", "1P", "9" * 30])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid size"):
        sizes.parsed(text)


def test_memory_without_a_unit_is_in_mebibytes_as_for_qemu() -> None:
    assert sizes.memory_bytes("512") == sizes.memory_bytes("512M") == 512 << 20


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1000, "1000 bytes"), (3 << 29, "1536M"), (1 << 40, "1T"), (2048, "2K")],
)
def test_a_size_is_shown(size: int, text: str) -> None:
    assert sizes.shown(size) == text
