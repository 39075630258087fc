"""How many waiting claims could use each device: what few of them want is taken first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from bullpen.core.claims import bitsets
from bullpen.core.claims.allocator import Allocator
from bullpen.core.claims.claim import Terms


class DeviceDemand:
    """The demand of one pass. Claims count with all their alternatives, also later ones."""

    def __init__(self, allocator: Allocator, waiting: Iterable[Terms]) -> None:
        self._index = allocator.index
        self._tally = bitsets.Tally()
        for terms, number in Counter(waiting).items():
            if terms.single:
                # They are looked up for the claim in any case.
                self._tally.add(bitsets.union(allocator.candidates(terms)), number)
            else:
                self._tally.add(allocator.usable(terms), number)

    def best(self, devices: int, kept: int = 0) -> int:
        """What a claim was given before, else what the fewest want; without counters if possible.

        Of several the most preferred one.
        """
        if devices & kept:
            return bitsets.lowest(devices & kept)
        if self._index.drawing:
            devices = devices & ~self._index.drawing or devices
        return bitsets.lowest(self._tally.least(devices))

    def of(self, number: int) -> int:
        return self._tally.count(number)

    def within(self, most: int) -> int:
        """The devices that at most so many claims could use."""
        return self._index.everything & self._tally.at_most(most)
