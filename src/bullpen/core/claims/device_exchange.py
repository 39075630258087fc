"""How claims of one pass make room for each other: they exchange devices of equal worth.

A device that a claim got in the pass can be replaced by another one that is as good to it: of the
same alternative, started as fast, with as many taints, and with the same value of each attribute
that a constraint of the claim looks at. So no claim loses anything, and no constraint breaks.
Chains of exchanges find room for one device whenever there is some.

Devices that draw on counters, are shared, or count towards totals or "All" are not exchanged, nor
is what a claim has whose leases exist already: they would be withdrawn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from bullpen.core.claims import bitsets
from bullpen.core.claims.allocator import Allocator, Answer, Member
from bullpen.core.claims.claim import Alternative, Request, Terms
from bullpen.core.claims.device_demand import DeviceDemand
from bullpen.core.claims.inventory_index import Value
from bullpen.core.claims.ledger import Ledger

if TYPE_CHECKING:
    from bullpen.core.claims.claim_queue import WaitingClaim

LOOKS_MAX = 10_000
"""Groups of devices that are asked in one pass whether they can be exchanged; then none is.

Each takes a few microseconds. Without exchanges a claim is served when devices are free for it.
"""


_Values = tuple[tuple[str, tuple[Value, ...]], ...]
"""Attributes with the values that one device has of them."""


class _Collected:
    """A set of numbers that is looked at less often than numbers are added to it."""

    def __init__(self, bits: int = 0) -> None:
        self._bits = bits
        self.added: list[int] = []

    def remove(self, number: int) -> None:
        self._bits = self.bits & ~(1 << number)

    @property
    def bits(self) -> int:
        if self.added:
            self._bits |= bitsets.of(self.added)
            self.added.clear()
        return self._bits


@dataclass(slots=True, eq=False)
class _Group:
    """Devices of claims that could exchange them for the same other devices."""

    claim: WaitingClaim
    """One of the claims: what it may use, the others may too."""

    worth: int
    """What is as good as these devices, free or not."""

    held: _Collected


class DeviceExchange:
    """What the claims of one pass got, and can exchange."""

    def __init__(
        self,
        allocator: Allocator,
        ledger: Ledger,
        demand: DeviceDemand,
        usable: Callable[[WaitingClaim], int],
    ) -> None:
        """``usable``: the devices that a claim may use now."""
        self.allocator, self.ledger, self.demand = allocator, ledger, demand
        self._index, self._usable = allocator.index, usable
        self._groups: dict[object, _Group] = {}
        self._holding: dict[int, tuple[_Group, str, int]] = {}
        """By device, the group, the name of the claim that has it, and its place in the answer."""

        self._whos: dict[tuple[timedelta, int | None], int] = {}
        self._last: tuple[WaitingClaim | None, int] = (None, 0)
        self._answers: dict[str, Answer] = {}
        """What each claim got before anything was exchanged, by name."""

        self._changed: dict[str, dict[int, int]] = {}
        """By claim and place in its answer, what it has instead."""

        self._movable = _Collected()
        self.stuck = 0
        """Devices from which no chain of exchanges leads to a free device.

        Devices only become fewer within a pass, so this is final for it.
        """

        self.looks = 0
        """How often a group was asked whether it can exchange a device."""

        self._moves: list[tuple[_Group, int, int]] = []
        """Which device was exchanged for which, in order."""

    @property
    def movable(self) -> int:
        """The devices that may be exchanged."""
        return self._movable.bits

    @property
    def moves(self) -> int:
        """How many devices were exchanged."""
        return len(self._moves)

    def moved(self) -> dict[str, Answer]:
        """What claims have whose devices were exchanged, by name."""
        return {name: self._with(self._answers[name], x) for name, x in self._changed.items()}

    def trial(self) -> DeviceExchange:
        """A copy, to find out what would be possible."""
        other = DeviceExchange(self.allocator, self.ledger.copy(), self.demand, self._usable)
        groups = {
            group: replace(group, held=_Collected(group.held.bits))
            for group in self._groups.values()
        }
        other._groups = {key: groups[group] for key, group in self._groups.items()}
        other._holding = {n: (groups[x], c, p) for n, (x, c, p) in self._holding.items()}
        other._movable = _Collected(self.movable)
        other.stuck, other.looks = self.stuck, self.looks
        return other

    def served(self, claim: WaitingClaim, terms: Terms, answer: Answer) -> None:
        """Remember what a claim got in this pass."""
        if claim.kept:
            return
        self._answers[claim.name] = answer
        who = self._who(claim)
        if not terms.single:
            self._served_several(claim, terms, answer, who)
            return
        (member,) = answer.members
        number = self._index.numbers[member.device]
        key = (terms, member.alternative, self._index.tier_of(number), who)
        group = self._groups.get(key)
        if group is None:
            worth = self._worth(terms, member, number, ())
            group = self._groups[key] = _Group(claim, worth, _Collected())
        if group.worth:
            self._hold(group, claim.name, 0, number)

    def _who(self, claim: WaitingClaim) -> int:
        """A number for claims that may use the same devices for as long: it hashes fast."""
        last, number = self._last
        if last is not None and last.duration is claim.duration and last.allowed is claim.allowed:
            return number
        number = self._whos.setdefault((claim.duration, claim.allowed), len(self._whos))
        self._last = (claim, number)
        return number

    def _served_several(self, claim: WaitingClaim, terms: Terms, answer: Answer, who: int) -> None:
        attributes: dict[str, tuple[str, ...]] = {}
        groups: dict[object, _Group] = {}
        for place, member in enumerate(answer.members):
            number = self._index.numbers[member.device]
            if member.request not in attributes:
                attributes[member.request] = self._attributes(terms, answer, member)
            values = self._values(attributes[member.request], number)
            alike = (member.request, self._index.tier_of(number), values, member.share)
            group = groups.get(alike)
            if group is None:
                key = (terms, member.alternative, alike, who)
                group = self._groups.get(key)
                if group is None:
                    worth = self._worth(terms, member, number, values)
                    group = self._groups[key] = _Group(claim, worth, _Collected())
                groups[alike] = group
            if group.worth:
                self._hold(group, claim.name, place, number)

    def worth(self, terms: Terms, answer: Answer, member: Member) -> int:
        """What is as good to the claim as a device that it got; none if it cannot be exchanged."""
        number = self._index.numbers[member.device]
        values = self._values(self._attributes(terms, answer, member), number)
        return self._worth(terms, member, number, values)

    def _worth(self, terms: Terms, member: Member, number: int, values: _Values) -> int:
        index, bit = self._index, 1 << number
        alternative = _alternative(terms, member)[1]
        if member.share is not None or index.drawing & bit or alternative.every:
            return 0
        if alternative.totals or any(index.listing(name) & bit for name, _ in values):
            return 0
        found = self.allocator.eligible(alternative) & index.tiers[index.tier_of(number)]
        found &= ~(index.tainted(alternative.tolerations) | index.drawing)
        if alternative.capacity:
            found &= ~index.shareable
        for attribute, (value,) in values:
            found &= index.values(attribute)[value] & ~index.listing(attribute)
        return found

    def _attributes(self, terms: Terms, answer: Answer, member: Member) -> tuple[str, ...]:
        """The attributes that constraints of the claim look at in a device that it got."""
        if not terms.constraints:
            return ()
        request, alternative = _alternative(terms, member)
        return tuple(
            constraint.attribute
            for constraint in terms.constraints
            if constraint.covers(request, alternative)
            and (not constraint.prefer or constraint in answer.preferred)
        )

    def _values(self, attributes: tuple[str, ...], number: int) -> _Values:
        return tuple((name, self._index.values_of(name, number)) for name in attributes)

    def make_all_free(self, devices: int, *, needed: int) -> int:
        """Free all of some devices, or nothing is exchanged; those that could not be freed."""
        before = len(self._moves)
        while devices:
            number = bitsets.lowest(devices)
            if self.make_free(1 << number, needed=needed) is None:
                for group, old, new in reversed(self._moves[before:]):
                    self._exchange(group, new, old)
                del self._moves[before:]
                # Often there is no room at all, which need not be found out again.
                self._chain(1 << number, 0)
                return 1 << number
            devices ^= 1 << number
        return 0

    def make_free(self, devices: int, *, needed: int = 0) -> int | None:
        """Free one of some devices by a chain of exchanges; None if that is impossible.

        ``needed``: what the claims that make room must not get instead.
        """
        chain = self._chain(devices, needed)
        if not chain:
            return None
        for group, old, new in chain:
            self._moves.append((group, old, new))
            self._exchange(group, old, new)
        return chain[-1][1]

    def _chain(self, devices: int, needed: int) -> list[tuple[_Group, int, int]]:
        """The exchanges that free one of some devices, in order; empty if there are none."""
        free = self.ledger.untouched & ~self._index.drawing & ~needed
        reached: dict[_Group, tuple[_Group | None, int]] = {}
        seen, waiting = 0, deque[tuple[_Group | None, int]]([(None, devices)])
        while waiting:
            source, found = waiting.popleft()
            found &= self.movable & ~self.stuck & ~seen
            seen |= found
            while found:
                number = bitsets.lowest(found)
                group = self._holding[number][0]
                found &= ~group.held.bits
                if group in reached:
                    continue
                if self.looks == LOOKS_MAX:
                    return []
                self.looks += 1
                reached[group] = (source, number)
                others = group.worth & self._usable(group.claim)
                if others & free:
                    return _steps(group, self.demand.best(others & free), reached)
                waiting.append((group, others & ~needed))
        if not needed:
            self.stuck |= seen
        return []

    def _exchange(self, group: _Group, old: int, new: int) -> None:
        """Give a claim of a group a device that is free for one that it has."""
        _, name, place = self._holding.pop(old)
        group.held.remove(old)
        self._movable.remove(old)
        self._hold(group, name, place, new)
        self.ledger.take(new, None)
        self.ledger.give_back(old, None)
        self._changed.setdefault(name, {})[place] = new

    def _hold(self, group: _Group, claim: str, place: int, number: int) -> None:
        self._holding[number] = (group, claim, place)
        group.held.added.append(number)
        self._movable.added.append(number)

    def _with(self, answer: Answer, changed: Mapping[int, int]) -> Answer:
        """An answer with other devices in some places."""
        members = list(answer.members)
        for place, number in changed.items():
            members[place] = replace(members[place], device=self._index.devices[number].name)
        return replace(answer, members=tuple(members))


def _alternative(terms: Terms, member: Member) -> tuple[Request, Alternative]:
    """The request that a member serves, and its alternative."""
    request = next(r for r in terms.requests if r.name == member.request)
    return request, request.alternatives[member.alternative]


def _steps(
    group: _Group, to: int, reached: dict[_Group, tuple[_Group | None, int]]
) -> list[tuple[_Group, int, int]]:
    """The chain that ends with a free device, which is exchanged first."""
    found: list[tuple[_Group, int, int]] = []
    step: _Group | None = group
    while step is not None:
        source, number = reached[step]
        found.append((step, number, to))
        step, to = source, number
    return found
