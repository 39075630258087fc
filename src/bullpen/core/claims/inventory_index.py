"""The devices of an inventory, numbered by preference, and sets of them by what they are.

Sets are integers with one bit for each device (``bitsets``). The index holds what devices are;
``ledger`` holds which of them are free. The order in which devices are listed does not matter.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from itertools import pairwise
from operator import itemgetter
from typing import TypeVar

from bullpen.core.claims import bitsets
from bullpen.core.claims.inventory import (
    Attribute,
    Effect,
    Inventory,
    InventoryDevice,
    Scalar,
    Taint,
    Toleration,
)

_Key = TypeVar("_Key")

LOOKED_FOR_MAX = 8
"""Values of an attribute that are looked for one by one; then the rest is found together."""

Value = tuple[str, Scalar]
"""A value of an attribute with its type: ``True``, ``1`` and ``"1"`` differ."""


def values_in(attribute: Attribute) -> tuple[Value, ...]:
    """The values of an attribute: one, or those of a list."""
    found = attribute if isinstance(attribute, tuple) else (attribute,)
    return tuple((type(value).__name__, value) for value in found)


class InventoryIndex:
    """Devices by number and by value, capacity, draw and taint."""

    def __init__(self, inventory: Inventory) -> None:
        """Devices that run come before those to be started, untainted before tainted ones.

        Then cheap ones come before costly ones.
        """

        def preference(device: InventoryDevice) -> tuple[object, ...]:
            return (
                *_worth(device),
                sum(drawn for _, drawn in device.draws),
                device.pool,
                device.position,
                device.name,
            )

        self.devices = tuple(sorted(inventory.devices, key=preference))
        self.counters = inventory.counters
        self.numbers = {device.name: number for number, device in enumerate(self.devices)}
        if len(self.numbers) != len(self.devices):
            raise ValueError("two devices of an inventory have the same name")
        self.everything = (1 << len(self.devices)) - 1
        worths = [_worth(device) for device in self.devices]
        starts = [n for n, found in enumerate(worths) if n == 0 or found != worths[n - 1]]
        self._tier_starts = starts
        self.tiers = tuple(
            (1 << end) - (1 << start) for start, end in pairwise((*starts, len(worths)))
        )
        """Devices that start as fast and have as many taints, the most preferred first."""

        self._values: dict[str, dict[Value, int]] = {}
        self._carriers: dict[str, int] = {}
        self._own: dict[str, list[tuple[Value, ...]]] = {}
        self._index_values()
        self.draws = _grouped((device.draws, n) for n, device in enumerate(self.devices))
        self.draws.pop((), None)
        self.drawing = bitsets.union(self.draws.values())
        self.shareable = self._where(lambda device: device.shareable)
        self.startable = self._where(lambda device: device.start > timedelta(0))
        self.blocked = self._where(lambda device: bool(device.blocked))
        self.unblocked = self.everything & ~self.blocked
        self.running = self.everything & ~self.startable
        self.incomplete = self._where(lambda device: device.pool in inventory.incomplete)
        self._taints = _grouped((d.taints, n) for n, d in enumerate(self.devices) if d.taints)
        self._capacity: dict[str, dict[int, int]] = {}
        self._profiles: list[tuple[InventoryDevice, int]] | None = None

    def tier_of(self, number: int) -> int:
        """The position of a device's tier in ``tiers``."""
        return bisect_right(self._tier_starts, number) - 1

    def values(self, attribute: str) -> Mapping[Value, int]:
        """For each value of an attribute the devices that have it."""
        return self._values.get(attribute, {})

    def having(self, attribute: str) -> int:
        """The devices that have an attribute, whatever its value; a list may be empty."""
        return self._carriers.get(attribute, 0)

    def listing(self, attribute: str) -> int:
        """The devices whose attribute is a list, which equals no scalar."""
        return self._lists.get(attribute, 0)

    def values_among(self, attribute: str, devices: int) -> list[Value]:
        """The values that ``devices`` have, in the order of their most preferred device."""
        by_value = self.values(attribute)
        count = devices.bit_count()
        if count < len(by_value):
            own = self._own.get(attribute, [])
            return list(
                dict.fromkeys(v for number in bitsets.members(devices) for v in own[number])
            )
        found = [
            (bitsets.lowest(here), v) for v, bits in by_value.items() if (here := bits & devices)
        ]
        return [value for _, value in sorted(found, key=itemgetter(0))]

    def each_value_among(self, attribute: str, devices: int) -> Iterator[Value]:
        """As ``values_among``, but the first values are looked for only when they are asked for."""
        devices &= self.having(attribute)
        if not devices & self.listing(attribute):
            own, by_value = self._own.get(attribute, []), self.values(attribute)
            for _ in range(LOOKED_FOR_MAX):
                if not devices:
                    return
                (value,) = own[bitsets.lowest(devices)]
                yield value
                devices &= ~by_value[value]
        yield from self.values_among(attribute, devices)

    def values_of(self, attribute: str, number: int) -> tuple[Value, ...]:
        """The values that one device has; empty if it lacks the attribute."""
        own = self._own.get(attribute)
        return own[number] if own else ()

    def offering(self, name: str, least: int) -> int:
        """The devices whose capacity of one name is at least so much."""
        return bitsets.union(bits for has, bits in self.capacity(name).items() if has >= least)

    def capacity(self, name: str) -> Mapping[int, int]:
        """For each amount of a capacity the devices that have exactly this much."""
        found = self._capacity.get(name)
        if found is None:
            devices = enumerate(self.devices)
            held = ((d.capacity[name], n) for n, d in devices if name in d.capacity)
            found = self._capacity[name] = _grouped(held)
        return found

    def tainted(self, tolerations: tuple[Toleration, ...]) -> int:
        """The devices with a taint that is in effect and not tolerated."""
        return bitsets.union(
            bits
            for taints, bits in self._taints.items()
            if any(repels(taint, tolerations) for taint in taints)
        )

    @property
    def profiles(self) -> list[tuple[InventoryDevice, int]]:
        """For each distinct description a device that has it, and all devices that have it."""
        if self._profiles is None:
            groups: dict[object, list[int]] = {}
            for number, device in enumerate(self.devices):
                facts = tuple(sorted((k, values_in(v)) for k, v in device.facts.items()))
                lists = tuple(sorted(k for k, v in device.facts.items() if isinstance(v, tuple)))
                described = (facts, lists, tuple(sorted(device.capacity.items())))
                groups.setdefault(described, []).append(number)
            self._profiles = [
                (self.devices[numbers[0]], bitsets.of(numbers)) for numbers in groups.values()
            ]
        return self._profiles

    def _index_values(self) -> None:
        members: dict[str, dict[Value, list[int]]] = {}
        lists: dict[str, list[int]] = {}
        carriers: dict[str, list[int]] = {}
        for number, device in enumerate(self.devices):
            for name, attribute in device.facts.items():
                own = self._own.get(name)
                if own is None:
                    own = self._own[name] = [()] * len(self.devices)
                    members[name] = {}
                    carriers[name] = []
                own[number] = values_in(attribute)
                carriers[name].append(number)
                if isinstance(attribute, tuple):
                    lists.setdefault(name, []).append(number)
                for value in own[number]:
                    members[name].setdefault(value, []).append(number)
        self._lists = {name: bitsets.of(numbers) for name, numbers in lists.items()}
        for name, found in members.items():
            self._values[name] = {value: bitsets.of(numbers) for value, numbers in found.items()}
            self._carriers[name] = bitsets.of(carriers[name])

    def _where(self, test: Callable[[InventoryDevice], bool]) -> int:
        return bitsets.of(number for number, device in enumerate(self.devices) if test(device))


def _worth(device: InventoryDevice) -> tuple[timedelta, int]:
    return device.start, len(device.taints)


def repels(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    """Whether a taint keeps a request with these tolerations away."""
    in_effect = taint.effect is not Effect.NONE
    return in_effect and not any(toleration.tolerates(taint) for toleration in tolerations)


def _grouped(keyed: Iterable[tuple[_Key, int]]) -> dict[_Key, int]:
    """For each key the set of its numbers."""
    groups: dict[_Key, list[int]] = {}
    for key, number in keyed:
        groups.setdefault(key, []).append(number)
    return {key: bitsets.of(numbers) for key, numbers in groups.items()}
