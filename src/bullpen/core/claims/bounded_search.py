"""The placements that a matching cannot decide: a search with bounds, on classes of equal devices.

Devices that no part of the question can tell apart form a class, and only one device of a class
is tried at each step. Groups are filled in the order of classes, so that no combination is
tried twice, and a state that failed once is not entered again. The search stops early where
the counters cannot suffice or the totals cannot be reached any more. It is exact; its
worst case is exponential, so every step is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bullpen.core.claims import bitsets
from bullpen.core.claims.inventory import Amounts
from bullpen.core.claims.inventory_index import InventoryIndex, Value
from bullpen.core.claims.ledger import Ledger
from bullpen.core.claims.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """So many devices out of a set, for one request."""

    devices: int
    count: int
    capacity: Amounts = ()
    """The share that each takes of a shareable device; empty for the whole device."""

    totals: Amounts = ()

    def narrowed(self, devices: int) -> Group:
        return self if devices == self.devices else replace(self, devices=devices)


@dataclass(frozen=True, slots=True)
class Rule:
    """A constraint on an attribute and the groups it covers, by number."""

    attribute: str
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Class:
    """Devices that the question cannot tell apart."""

    devices: int
    size: int
    first: int
    draws: Amounts
    shareable: bool
    values: tuple[int, ...]
    """For each distinct rule the set of values that it would use up, one bit for each value."""


def needed(index: InventoryIndex, ledger: Ledger, groups: Sequence[Group]) -> bool:
    """Whether shares, totals or counters can make a difference."""
    if any(group.totals for group in groups):
        return True
    units = sum(group.count for group in groups)
    devices = bitsets.union(group.devices for group in groups)
    if units > 1 and devices & index.shareable:
        return True
    return bool(devices & index.drawing) and _counters_may_run_out(index, ledger, devices, units)


def _counters_may_run_out(index: InventoryIndex, ledger: Ledger, devices: int, units: int) -> bool:
    drawn: dict[str, list[int]] = {}
    for draws, having in index.draws.items():
        count = (having & devices & ledger.unused).bit_count()
        for counter, amount in draws if count else ():
            drawn.setdefault(counter, []).extend([amount] * min(count, units))
    return any(
        sum(sorted(amounts, reverse=True)[:units]) > ledger.counters.get(counter, 0)
        for counter, amounts in drawn.items()
    )


def search(
    index: InventoryIndex,
    ledger: Ledger,
    groups: Sequence[Group],
    distinct: Sequence[Rule],
    work: Work,
) -> list[list[int]] | None:
    """Devices for every group; None if that is impossible. Raises ``BudgetExhausted``."""
    return _Search(index, ledger, groups, distinct, work).run()


class _Search:
    def __init__(
        self,
        index: InventoryIndex,
        ledger: Ledger,
        groups: Sequence[Group],
        distinct: Sequence[Rule],
        work: Work,
    ) -> None:
        self._index, self._ledger, self._work = index, ledger, work
        self._groups, self._distinct = groups, distinct
        self._value_numbers: dict[tuple[str, Value], int] = {}
        self._classes = self._classified()
        self._usable = [
            [n for n, item in enumerate(self._classes) if item.devices & group.devices]
            for group in groups
        ]
        self._order = sorted(
            range(len(groups)), key=lambda g: (groups[g].devices.bit_count() - groups[g].count, g)
        )
        self._rules_of = [
            [n for n, rule in enumerate(distinct) if group in rule.groups]
            for group in range(len(groups))
        ]
        names = {counter for item in self._classes for counter, _ in item.draws}
        self._counters = {name: ledger.counters.get(name, 0) for name in sorted(names)}
        self._used = [0] * len(self._classes)
        self._shares: dict[int, list[Amounts]] = {}
        """For each shareable class the shares taken by this search; () is the whole device."""

        self._values = [0] * len(distinct)
        """For each distinct rule the set of values that are used up."""

        self._failed: set[object] = set()
        self._bounds: dict[tuple[int, str, int, int], int] = {}
        self._picks: list[list[int]] = [[] for _ in groups]

    def run(self) -> list[list[int]] | None:
        if not self._fill(0, 0, self._missing(0)):
            return None
        counted = zip(self._classes, self._used, strict=True)
        numbers = [iter(bitsets.first(item.devices, used)) for item, used in counted]
        return [
            sorted(
                self._classes[n].first if self._classes[n].shareable else next(numbers[n])
                for n in picks
            )
            for picks in self._picks
        ]

    def _missing(self, place: int) -> tuple[int, ...]:
        """What the totals of a group still lack, when none of its devices is chosen."""
        return tuple(t for _, t in self._groups[self._order[place]].totals)

    def _fill(self, place: int, start: int, lacking: tuple[int, ...]) -> bool:
        """Choose the remaining devices of the group at ``place`` and of all groups after it."""
        group = self._order[place]
        left = self._groups[group].count - len(self._picks[group])
        if not left:
            if any(amount > 0 for amount in lacking):
                return False
            after = place + 1
            return after == len(self._order) or self._fill(after, 0, self._missing(after))
        state = self._state(place, start, left, lacking)
        if state in self._failed:
            return False
        usable = self._usable[group]
        for position in range(start, len(usable)):
            self._work.spend()
            if not self._reachable(group, position, left, lacking):
                break
            if not self._fits(group, usable[position]):
                continue
            self._choose(group, usable[position])
            if self._affordable(place, position, left - 1) and self._fill(
                place, self._next_start(position, usable), self._after(group, position, lacking)
            ):
                return True
            self._take_back(group)
        self._failed.add(state)
        return False

    def _next_start(self, position: int, usable: list[int]) -> int:
        """The same class may be chosen again, but not the same device twice for one group."""
        number = usable[position]
        item = self._classes[number]
        return position + (item.shareable or self._used[number] >= item.size)

    def _state(self, place: int, start: int, left: int, lacking: tuple[int, ...]) -> object:
        return (
            (place, start, left, lacking),
            tuple(self._counters.values()),
            tuple(self._used),
            tuple(self._values),
            tuple((n, tuple(sorted(s))) for n, s in sorted(self._shares.items()) if s),
        )

    def _fits(self, group: int, number: int) -> bool:
        """Whether one more device of a class can be chosen for a group."""
        item = self._classes[number]
        if self._conflicts(group, item):
            return False
        if item.shareable:
            if not self._has_room(self._groups[group], number):
                return False
        elif self._used[number] >= item.size:
            return False
        return not self._draws(number) or all(
            self._counters[counter] >= amount for counter, amount in item.draws
        )

    def _conflicts(self, group: int, item: _Class) -> bool:
        """Whether a value of the class is used up."""
        for rule in self._rules_of[group]:  # noqa: SIM110 - a loop, because it runs most often
            if item.values[rule] & self._values[rule]:
                return True
        return False

    def _has_room(self, group: Group, number: int) -> bool:
        device, shares = self._classes[number].first, self._shares.get(number, [])
        if not group.capacity or group.totals:
            return not shares and bool(self._ledger.unused >> device & 1)
        if () in shares:
            return False
        asked = dict(group.capacity)
        for share in shares:
            for name, amount in share:
                asked[name] = asked.get(name, 0) + amount
        return self._ledger.has_room(device, tuple(asked.items()))

    def _choose(self, group: int, number: int) -> None:
        self._picks[group].append(number)
        item = self._classes[number]
        if self._draws(number):
            for counter, amount in item.draws:
                self._counters[counter] -= amount
        self._used[number] += 1
        if item.shareable:
            asked = self._groups[group]
            self._shares.setdefault(number, []).append(() if asked.totals else asked.capacity)
        for rule in self._rules_of[group]:
            self._values[rule] |= item.values[rule]

    def _take_back(self, group: int) -> None:
        """Undo the last ``_choose`` of a group."""
        number = self._picks[group].pop()
        item = self._classes[number]
        self._used[number] -= 1
        if item.shareable:
            self._shares[number].pop()
        if self._draws(number):
            for counter, amount in item.draws:
                self._counters[counter] += amount
        for rule in self._rules_of[group]:
            self._values[rule] ^= item.values[rule]

    def _draws(self, number: int) -> bool:
        """Whether the next use of a class draws on counters: a shared device draws only once."""
        item = self._classes[number]
        if not item.shareable:
            return True
        return not self._used[number] and bool(self._ledger.unused >> item.first & 1)

    def _affordable(self, place: int, position: int, left: int) -> bool:
        """Whether the counters can suffice for everything that is still to be chosen."""
        for counter, remaining in self._counters.items():
            least = self._least(self._order[place], counter, position, left)
            for later in self._order[place + 1 :]:
                least += self._least(later, counter, 0, self._groups[later].count)
            if least > remaining:
                return False
        return True

    def _least(self, group: int, counter: str, position: int, count: int) -> int:
        """The least that ``count`` devices of a group, from a class on, draw from a counter."""
        key = (group, counter, position, count)
        known = self._bounds.get(key)
        if known is None:
            drawn: list[int] = []
            for number in self._usable[group][position:]:
                item = self._classes[number]
                amount = 0 if item.shareable else dict(item.draws).get(counter, 0)
                drawn += [amount] * min(item.size, count)
            known = self._bounds[key] = sum(sorted(drawn)[:count])
        return known

    def _reachable(self, group: int, position: int, left: int, lacking: tuple[int, ...]) -> bool:
        """Whether enough devices follow, with enough values, and they reach the totals."""
        following = self._following(group, position, left)
        if following < left:
            return False
        for (name, _), amount in zip(self._groups[group].totals, lacking, strict=True):
            if amount > 0 and self._most(group, name, position, left) < amount:
                return False
        return True

    def _following(self, group: int, position: int, left: int) -> int:
        """How many devices can be chosen from a class on, at most."""
        rules, usable = self._rules_of[group], self._usable[group]
        count, values = 0, [0] * len(self._distinct)
        for number in usable[position:]:
            item = self._classes[number]
            if not rules:
                count += item.size
                if count >= left:
                    break
            elif not self._conflicts(group, item):
                count += 1
                for rule in rules:
                    values[rule] |= item.values[rule]
        return min([count, *(values[rule].bit_count() for rule in rules)])

    def _most(self, group: int, name: str, position: int, count: int) -> int:
        """The most that ``count`` devices of a group, from a class on, offer together."""
        key = (group, f"total {name}", position, count)
        known = self._bounds.get(key)
        if known is None:
            offered: list[int] = []
            for number in self._usable[group][position:]:
                item = self._classes[number]
                amount = self._index.devices[item.first].capacity.get(name, 0)
                offered += [amount] * min(item.size, count)
            known = self._bounds[key] = sum(sorted(offered, reverse=True)[:count])
        return known

    def _after(self, group: int, position: int, lacking: tuple[int, ...]) -> tuple[int, ...]:
        device = self._index.devices[self._classes[self._usable[group][position]].first]
        totals = self._groups[group].totals
        return tuple(
            amount - device.capacity.get(name, 0)
            for (name, _), amount in zip(totals, lacking, strict=True)
        )

    def _classified(self) -> list[_Class]:
        devices = bitsets.union(group.devices for group in self._groups)
        parts = [devices]
        for mask in dict.fromkeys(group.devices for group in self._groups):
            parts = _split(parts, (mask,))
        parts = _split(parts, self._index.draws.values())
        for name in dict.fromkeys(name for group in self._groups for name, _ in group.totals):
            parts = _split(parts, self._index.capacity(name).values())
        for rule in self._distinct:
            parts = [p for part in parts for p in self._by_values(rule.attribute, part)]
        shared = devices & self._index.shareable
        parts = _split(parts, (1 << n for n in bitsets.members(shared)))
        return [self._class_of(part) for part in sorted(parts, key=bitsets.lowest)]

    def _by_values(self, attribute: str, part: int) -> Iterable[int]:
        """The devices of a class by all their values of an attribute."""
        groups: dict[frozenset[Value], int] = {}
        lists = part & self._index.listing(attribute)
        for number in bitsets.members(lists):
            own = frozenset(self._index.values_of(attribute, number))
            groups[own] = groups.get(own, 0) | 1 << number
        yield from groups.values()
        rest = part & ~lists
        by_value = self._index.values(attribute)
        for value in self._index.values_among(attribute, rest):
            yield rest & by_value[value]
            rest &= ~by_value[value]
        if rest:
            yield rest

    def _class_of(self, part: int) -> _Class:
        first = bitsets.lowest(part)
        device = self._index.devices[first]
        return _Class(
            devices=part,
            size=part.bit_count(),
            first=first,
            draws=device.draws,
            shareable=device.shareable,
            values=tuple(self._value_bits(rule.attribute, first) for rule in self._distinct),
        )

    def _value_bits(self, attribute: str, number: int) -> int:
        bits = 0
        for value in self._index.values_of(attribute, number):
            bits |= 1 << self._value_numbers.setdefault(
                (attribute, value), len(self._value_numbers)
            )
        return bits


def _split(parts: Sequence[int], sets: Iterable[int]) -> list[int]:
    """The parts divided by sets: what a set has, and what is left over."""
    found: list[int] = []
    rest = list(parts)
    for members in sets:
        found += [part & members for part in rest if part & members]
        rest = [part & ~members for part in rest if part & ~members]
    return found + rest
