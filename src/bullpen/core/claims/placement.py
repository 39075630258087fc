"""Devices for groups of equal units, under constraints that hold across groups.

A match constraint is decided by enumerating the values of its attribute, not devices: with a
value chosen, it only narrows the sets of candidates. What is left is a bipartite matching.
Only distinct constraints that overlap with other needs, counters, shares and totals need the
``bounded_search``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bullpen.core.claims import bitsets, bounded_search
from bullpen.core.claims.bounded_search import Group, Rule
from bullpen.core.claims.inventory_index import InventoryIndex, Value
from bullpen.core.claims.ledger import Ledger
from bullpen.core.claims.work import Work
from bullpen.core.leases.target_set import complete_set, largest_matching

Chosen = list[list[int]]
"""For each group the numbers of its devices."""

Candidates = list[int]
"""For each group the set of devices that it may get."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Places groups of one claim on one inventory."""

    index: InventoryIndex
    ledger: Ledger
    work: Work

    def place(
        self, groups: Sequence[Group], *, match: Sequence[Rule], distinct: Sequence[Rule]
    ) -> Chosen | None:
        """Devices for every group; None if that is impossible."""

        def leaf(candidates: Candidates) -> Chosen | None:
            narrowed = [g.narrowed(c) for g, c in zip(groups, candidates, strict=True)]
            return self._exact(narrowed, distinct)

        return self._joined(groups, [g.devices for g in groups], match, leaf)

    def possible(
        self, groups: Sequence[Group], *, match: Sequence[Rule], distinct: Sequence[Rule]
    ) -> bool:
        """False only if there is no placement; counters, shares and totals are ignored."""

        def leaf(candidates: Candidates) -> Chosen | None:
            narrowed = [g.narrowed(c) for g, c in zip(groups, candidates, strict=True)]
            return [] if self._plausible(narrowed, distinct) else None

        self.work.spend()
        return self._joined(groups, [g.devices for g in groups], match, leaf) is not None

    def _joined(
        self,
        groups: Sequence[Group],
        candidates: Candidates,
        match: Sequence[Rule],
        leaf: Callable[[Candidates], Chosen | None],
    ) -> Chosen | None:
        """The first placement that a choice of values for the match constraints allows."""
        if len(match) == 1:
            return self._joined_once(groups, candidates, match[0], leaf)
        consistent = self._consistent(groups, candidates, match)
        if consistent is None:
            return None
        candidates, values = consistent
        if not match:
            return leaf(candidates)
        fewest = min(range(len(match)), key=lambda number: (len(values[number]), number))
        rule = match[fewest]
        rest = [other for number, other in enumerate(match) if number != fewest]
        for value in values[fewest]:
            self.work.spend()
            having = self.index.values(rule.attribute)[value]
            narrowed = [c & having if g in rule.groups else c for g, c in enumerate(candidates)]
            found = self._joined(groups, narrowed, rest, leaf)
            if found is not None:
                return found
        return None

    def _joined_once(
        self,
        groups: Sequence[Group],
        candidates: Candidates,
        rule: Rule,
        leaf: Callable[[Candidates], Chosen | None],
    ) -> Chosen | None:
        """As ``_joined`` with one constraint: values are counted only until one suffices."""
        for value in self._common_values(groups, candidates, rule):
            self.work.spend()
            having = self.index.values(rule.attribute)[value]
            narrowed = [c & having if g in rule.groups else c for g, c in enumerate(candidates)]
            found = self._joined(groups, narrowed, (), leaf)
            if found is not None:
                return found
        return None

    def _consistent(
        self, groups: Sequence[Group], candidates: Candidates, match: Sequence[Rule]
    ) -> tuple[Candidates, list[list[Value]]] | None:
        """Candidates that have a value with enough devices for every group, and these values."""
        narrowed = list(candidates)
        values: list[list[Value]] = [[] for _ in match]
        changed = True
        while changed:
            changed = False
            if any(c.bit_count() < g.count for g, c in zip(groups, narrowed, strict=True)):
                return None
            for number, rule in enumerate(match):
                values[number] = list(self._common_values(groups, narrowed, rule))
                by_value = self.index.values(rule.attribute)
                having = bitsets.union(by_value[value] for value in values[number])
                for group in rule.groups:
                    changed |= narrowed[group] & having != narrowed[group]
                    narrowed[group] &= having
        if any(c.bit_count() < g.count for g, c in zip(groups, narrowed, strict=True)):
            return None
        return narrowed, values

    def _common_values(
        self, groups: Sequence[Group], candidates: Candidates, rule: Rule
    ) -> Iterator[Value]:
        """Values that enough candidates of every group have, by the first group's best device."""
        by_value = self.index.values(rule.attribute)
        needs: dict[int, int] = {}
        for number in rule.groups:
            devices, count = candidates[number], groups[number].count
            known = needs.get(devices, 0)
            # Groups with the same candidates compete for them, unless they may share.
            needs[devices] = max(known, count) if devices & self.index.shareable else known + count
        return (
            value
            for value in self.index.each_value_among(rule.attribute, candidates[rule.groups[0]])
            if _enough(needs, by_value[value], shareable=self.index.shareable)
        )

    def _exact(self, groups: Sequence[Group], distinct: Sequence[Rule]) -> Chosen | None:
        groups = self._with_attributes(groups, distinct)
        rules = [rule for rule in distinct if sum(groups[g].count for g in rule.groups) > 1]
        simple = not bounded_search.needed(self.index, self.ledger, groups)
        if simple and not rules:
            return _matched(groups)
        if not self._plausible(groups, rules):
            return None
        if simple and len(rules) == 1 and self._covers_all(groups, rules[0]):
            return self._by_distinct_values(groups, rules[0])
        return bounded_search.search(self.index, self.ledger, groups, rules, self.work)

    def _plausible(self, groups: Sequence[Group], distinct: Sequence[Rule]) -> bool:
        """Whether there are enough devices for all groups, and enough values for each rule."""
        exclusive = [group for group in groups if not group.devices & self.index.shareable]
        if _matched(exclusive, only_check=True) is None:
            return False
        narrowed = self._with_attributes(groups, distinct)
        return all(self._enough_values(narrowed, rule) for rule in distinct)

    def _with_attributes(self, groups: Sequence[Group], rules: Sequence[Rule]) -> list[Group]:
        found = list(groups)
        for rule in rules:
            having = self.index.having(rule.attribute)
            for group in rule.groups:
                found[group] = found[group].narrowed(found[group].devices & having)
        return found

    def _enough_values(self, groups: Sequence[Group], rule: Rule) -> bool:
        choices = self._value_choices(groups, rule)
        return len(largest_matching(choices)) == len(choices)

    def _value_choices(self, groups: Sequence[Group], rule: Rule) -> list[list[Value]]:
        units = sum(groups[g].count for g in rule.groups)
        known = {g: self.index.values_among(rule.attribute, groups[g].devices) for g in rule.groups}
        return [known[g][:units] for g in rule.groups for _ in range(groups[g].count)]

    def _covers_all(self, groups: Sequence[Group], rule: Rule) -> bool:
        """Whether different values already mean different devices, for all groups."""
        lists = self.index.listing(rule.attribute)
        return len(rule.groups) == len(groups) and not any(g.devices & lists for g in groups)

    def _by_distinct_values(self, groups: Sequence[Group], rule: Rule) -> Chosen | None:
        values = complete_set(self._value_choices(groups, rule))
        if values is None:
            return None
        rest = iter(values)
        having = self.index.values(rule.attribute)
        by_group = {g: [next(rest) for _ in range(groups[g].count)] for g in rule.groups}
        return [
            [bitsets.lowest(group.devices & having[value]) for value in by_group[number]]
            for number, group in enumerate(groups)
        ]


def _enough(needs: dict[int, int], having: int, *, shareable: int) -> bool:
    """Whether the devices with a value suffice for each need, and for all of them together."""
    together = 0
    for devices, count in needs.items():
        found = devices & having
        if found.bit_count() < count:
            return False
        together |= found
    return bool(together & shareable) or together.bit_count() >= sum(needs.values())


def _matched(groups: Sequence[Group], *, only_check: bool = False) -> Chosen | None:
    """Different devices for all groups, the best for the first; None if there are too few."""
    candidates = _settled(groups)
    if candidates is None:
        return None
    chosen: Chosen = []
    contested: list[int] = []
    for number, group in enumerate(groups):
        mine = candidates[number]
        rival = any(mine & other for n, other in enumerate(candidates) if n != number)
        contested += [number] if rival else []
        chosen.append([] if rival or only_check else bitsets.first(mine, group.count))
    units = sum(groups[number].count for number in contested)
    if not units:
        return chosen
    lists: dict[int, list[int]] = {}
    choices: list[list[int]] = []
    for number in contested:
        mine = candidates[number]
        best = lists.get(mine)
        if best is None:
            best = lists[mine] = bitsets.first(mine, units)
        choices += [best] * groups[number].count
    if only_check:
        return chosen if len(largest_matching(choices)) == units else None
    found = complete_set(choices)
    if found is None:
        return None
    rest = iter(found)
    for number in contested:
        chosen[number] = [next(rest) for _ in range(groups[number].count)]
    return chosen


def _settled(groups: Sequence[Group]) -> Candidates | None:
    """The candidates without those that a group needs all of; None if there are too few."""
    candidates = [group.devices for group in groups]
    settled: set[int] = set()
    changed = True
    while changed:
        changed = False
        for number, group in enumerate(groups):
            spare = candidates[number].bit_count() - group.count
            if spare < 0:
                return None
            if spare == 0 and number not in settled:
                settled.add(number)
                taken = candidates[number]
                for other in range(len(groups)):
                    if other != number and candidates[other] & taken:
                        candidates[other] &= ~taken
                        changed = True
    if any(c.bit_count() < g.count for c, g in zip(candidates, groups, strict=True)):
        return None
    return candidates
