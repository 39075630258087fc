"""What is in use and what is left: devices, shares of devices, and shared counters.

A ledger belongs to one index. It changes while a pass hands out devices, so a pass works on a
copy.
"""

from __future__ import annotations

from collections.abc import Iterable

from bullpen.core.claims import bitsets
from bullpen.core.claims.inventory import Amounts, Use
from bullpen.core.claims.inventory_index import InventoryIndex


class Ledger:
    """The free part of an inventory."""

    def __init__(self, index: InventoryIndex, uses: Iterable[Use] = ()) -> None:
        self._index = index
        self.unused = index.everything
        """Devices of which no part is in use."""

        self.shared = 0
        """Shareable devices that are used in part."""

        self.used: dict[int, dict[str, int]] = {}
        """For each of them how much of its capacity is in use."""

        self.counters = dict(index.counters)
        """What is left of each counter; below zero if it is overdrawn."""

        self._further: dict[int, int] = {}
        """For each device with several uses, how many there are besides the first."""

        for use in uses:
            number = index.numbers.get(use.device)
            if number is not None:
                self.take(number, use.share)

    @property
    def untouched(self) -> int:
        """Devices that are neither in use nor blocked."""
        return self.unused & self._index.unblocked

    def copy(self) -> Ledger:
        other = Ledger.__new__(Ledger)
        other._index = self._index
        other.unused, other.shared = self.unused, self.shared
        other.used = {number: dict(amounts) for number, amounts in self.used.items()}
        other.counters = dict(self.counters)
        other._further = dict(self._further)
        return other

    def take(self, number: int, share: Amounts | None) -> None:
        """Use a device, or a share of it. Its counters are drawn by the first use."""
        bit = 1 << number
        if self.unused & bit:
            self.unused ^= bit
            for counter, drawn in self._index.devices[number].draws:
                self.counters[counter] = self.counters.get(counter, 0) - drawn
        else:
            self._further[number] = self._further.get(number, 0) + 1
        if share is None or not self._index.devices[number].shareable:
            if self.shared & bit:
                self.shared ^= bit
                del self.used[number]
            return
        self.shared |= bit
        used = self.used.setdefault(number, {})
        for name, amount in share:
            used[name] = used.get(name, 0) + amount

    def give_back(self, number: int, share: Amounts | None) -> None:
        """Undo a ``take``. A device with other uses stays in use, as do its counters."""
        bit = 1 << number
        for name, amount in share or () if self.shared & bit else ():
            self.used[number][name] -= amount
        if self._further.get(number):
            self._further[number] -= 1
            return
        self.unused |= bit
        if self.shared & bit:
            self.shared ^= bit
            del self.used[number]
        for counter, drawn in self._index.devices[number].draws:
            self.counters[counter] = self.counters.get(counter, 0) + drawn

    def with_room(self, capacity: Amounts) -> int:
        """The shared devices that have so much capacity left; ``untouched`` ones not included."""
        if not capacity:
            return 0
        return bitsets.of(n for n in bitsets.members(self.shared) if self.has_room(n, capacity))

    def has_room(self, number: int, capacity: Amounts) -> bool:
        has, used = self._index.devices[number].capacity, self.used.get(number, {})
        return all(used.get(name, 0) + asked <= has.get(name, -1) for name, asked in capacity)
