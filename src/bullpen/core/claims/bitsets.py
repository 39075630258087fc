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


class Tally:
    """How often each number was counted, bit by bit: adding a whole set costs a few operations."""

    def __init__(self) -> None:
        self._planes: list[int] = []
        """The numbers whose count has the bit 1, those whose count has the bit 2, and so on."""

        self._absent: list[int] | None = None
        """The numbers whose count has not the highest bit, and so on."""

    def add(self, numbers: int, times: int = 1) -> None:
        """Count each number of a set so many times."""
        self._absent = None
        for level in range(times.bit_length()):
            if times >> level & 1:
                self._carry(numbers, level)

    def _carry(self, carry: int, level: int) -> None:
        while carry:
            while level >= len(self._planes):
                self._planes.append(0)
            plane = self._planes[level]
            self._planes[level], carry = plane ^ carry, plane & carry
            level += 1

    def least(self, bits: int) -> int:
        """Those of a set that were counted least often."""
        if self._absent is None:
            self._absent = [~plane for plane in reversed(self._planes)]
        for absent in self._absent:
            bits = bits & absent or bits
        return bits

    def count(self, number: int) -> int:
        """How often one number was counted."""
        bit = 1 << number
        return sum(1 << level for level, plane in enumerate(self._planes) if plane & bit)

    def at_most(self, most: int) -> int:
        """The numbers that were not counted more often; without a bound, as they never were."""
        if most >> len(self._planes):
            return -1
        fewer, equal = 0, -1
        for level, plane in reversed(list(enumerate(self._planes))):
            if most >> level & 1:
                fewer |= equal & ~plane
                equal &= plane
            else:
                equal &= ~plane
        return fewer | equal
