"""Sets of device numbers as integers with one bit for each device.

The lowest number is the most preferred device, so the lowest bit is the best member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def members(bits: int) -> Iterator[int]:
    """The numbers in the set, lowest first."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def lowest(bits: int) -> int:
    """The lowest number of a set that is not empty."""
    return (bits & -bits).bit_length() - 1


def first(bits: int, count: int) -> list[int]:
    """The ``count`` lowest numbers; fewer if there are no more."""
    found: list[int] = []
    while bits and len(found) < count:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


def of(numbers: Iterable[int]) -> int:
    found = list(numbers)
    if not found:
        return 0
    # Setting bits in place is linear; building the integer bit by bit is quadratic.
    cells = bytearray(max(found) // 8 + 1)
    for number in found:
        cells[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(cells, "little")


def union(sets: Iterable[int]) -> int:
    bits = 0
    for found in sets:
        bits |= found
    return bits
