"""Claims for one device that compete in one pass: who gets which, and who makes room for whom.

A claim for one device gets the best of its alternatives, and of an alternative the best devices,
that it can have while every claim ahead of it keeps what is as good: a claim that was served in
the same pass moves to another device of equal worth if that makes room. Devices are of equal
worth to a claim if they are of the same alternative, start as fast and have as many taints.
Which sets of claims can be served together is then a matroid, so serving one claim after the
other gives the best result for the first, then for the second, and so on.

Among devices of equal worth a claim takes those that the fewest waiting claims could use.

A claim whose leases exist already is not moved: they would be withdrawn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bullpen.core.claims import bitsets
from bullpen.core.claims.allocator import Allocator, Answer, Member, Verdict
from bullpen.core.claims.claim import Terms
from bullpen.core.claims.ledger import Ledger

if TYPE_CHECKING:
    from bullpen.core.claims.claim_queue import WaitingClaim

LOOKS_MAX = 10_000
"""Groups of claims that are asked in one pass whether they can move. Then nothing moves any more.

Each takes a few microseconds. Without moves a claim is served when a device is free for it.
"""


@dataclass(slots=True, eq=False)
class _Group:
    """Claims that were served with devices of equal worth and could exchange them."""

    claim: WaitingClaim
    """One of them: what it may use, the others may too."""

    terms: Terms
    alternative: int
    tier: int
    held: int = 0


class SingleClaims:
    """The claims for one device of one pass."""

    def __init__(
        self,
        allocator: Allocator,
        ledger: Ledger,
        wanted: bitsets.Tally,
        usable: Callable[[WaitingClaim], int],
    ) -> None:
        """``wanted``: how many waiting claims could use each device.

        ``usable``: the devices that a claim may use now.
        """
        self._allocator, self._index = allocator, allocator.index
        self._ledger, self._wanted, self._usable = ledger, wanted, usable
        self._groups: dict[object, _Group] = {}
        self._holding: dict[int, _Group] = {}
        self._claims: dict[int, WaitingClaim] = {}
        """By device, the group and the claim that has it."""

        self._movable = 0
        """The devices of claims that may be moved."""

        self._stuck = 0
        """Those of them from which no chain of moves leads to a free device.

        Devices only become fewer within a pass, so this is final for it.
        """

        self.looks = 0
        """How often a group of claims was asked whether it can move."""

        self.moved: dict[str, Answer] = {}
        """What claims have that were moved, by name."""

    def ask(self, claim: WaitingClaim, terms: Terms, usable: int) -> Answer | None:
        """What the claim gets; None if that needs a search, because counters are drawn."""
        self._allocator.questions += 1
        index, untouched = self._index, self._ledger.untouched
        for alternative, candidates in enumerate(self._allocator.candidates(terms)):
            reach = candidates & usable
            free = reach & untouched
            tier = index.tier_of(bitsets.lowest(free)) if free else len(index.tiers)
            best = self._made_free(claim, reach, tier) if tier else None
            if best is None and free:
                best = self._best(free & index.tiers[tier], claim.kept)
                if index.drawing >> best & 1:
                    return None
            if best is not None:
                return self._answer(terms, alternative, best)
        return Answer(verdict=Verdict.UNSATISFIABLE)

    def served(self, claim: WaitingClaim, terms: Terms, answer: Answer) -> None:
        """Remember that a claim got its device in this pass, and may be moved."""
        (member,) = answer.members
        number = self._index.numbers[member.device]
        if claim.kept or self._index.drawing >> number & 1:
            return
        tier = self._index.tier_of(number)
        key = (terms, member.alternative, tier, claim.duration, claim.allowed)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(claim, terms, member.alternative, tier)
        self._hold(group, claim, number)

    def _made_free(self, claim: WaitingClaim, reach: int, before: int) -> int | None:
        """A device of ``reach`` in a tier ``before`` that others can make free for the claim.

        None if there is none.
        """
        index = self._index
        held = 0 if claim.kept else reach & self._movable & ~self._stuck
        while held and (tier := index.tier_of(bitsets.lowest(held))) < before:
            found = self._chain(held & index.tiers[tier])
            if found is not None:
                return found
            held &= ~index.tiers[tier]
        return None

    def _chain(self, held: int) -> int | None:
        """Free one of these devices by a chain of moves; None if none ends at a free device."""
        free = self._ledger.untouched & ~self._index.drawing
        reached: dict[_Group, tuple[_Group | None, int]] = {}
        seen, waiting = 0, deque[tuple[_Group | None, int]]([(None, held)])
        while waiting:
            source, devices = waiting.popleft()
            devices &= self._movable & ~self._stuck & ~seen
            seen |= devices
            while devices:
                number = bitsets.lowest(devices)
                group = self._holding[number]
                devices &= ~group.held
                if group in reached:
                    continue
                if self.looks == LOOKS_MAX:
                    return None
                self.looks += 1
                reached[group] = (source, number)
                others = self._worth(group)
                if others & free:
                    return self._move(group, self._best(others & free, 0), reached)
                waiting.append((group, others))
        self._stuck |= seen
        return None

    def _worth(self, group: _Group) -> int:
        """The devices that are as good to the claims of a group as what they have."""
        candidates = self._allocator.candidates(group.terms)[group.alternative]
        return candidates & self._index.tiers[group.tier] & self._usable(group.claim)

    def _move(
        self, group: _Group, to: int, reached: dict[_Group, tuple[_Group | None, int]]
    ) -> int:
        """Move one claim of each group of the chain; the device that becomes free."""
        self._ledger.take(to, None)
        step: _Group | None = group
        while step is not None:
            source, number = reached[step]
            claim, bit = self._claims.pop(number), 1 << number
            step.held ^= bit
            self._movable ^= bit
            self._hold(step, claim, to)
            self.moved[claim.name] = self._answer(step.terms, step.alternative, to)
            step, to = source, number
        return to

    def _hold(self, group: _Group, claim: WaitingClaim, number: int) -> None:
        bit = 1 << number
        self._holding[number] = group
        self._claims[number] = claim
        group.held |= bit
        self._movable |= bit

    def _best(self, devices: int, kept: int) -> int:
        """What the claim was given before, else what the fewest claims want; no counters if so."""
        if devices & kept:
            return bitsets.lowest(devices & kept)
        if self._index.drawing:
            devices = devices & ~self._index.drawing or devices
        return bitsets.lowest(self._wanted.least(devices))

    def _answer(self, terms: Terms, alternative: int, number: int) -> Answer:
        (request,) = terms.requests
        name = self._index.devices[number].name
        member = Member(request=request.name, alternative=alternative, device=name)
        return Answer(verdict=Verdict.SATISFIED, members=(member,))
