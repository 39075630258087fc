"""Claims for several devices in one pass: with room that others make, of what few claims want.

A claim gets the best set (``allocator``) of what is free. If claims ahead of it can make a better
one free by exchanging devices of equal worth (``device_exchange``), it gets that. Which set they
can make free is not searched for completely: a few sets are tried.

Of sets that are equally good it gets one whose most wanted device is wanted by as few waiting
claims as possible, and then, device by device, the least wanted of what is as good.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from bullpen.core.claims import bitsets
from bullpen.core.claims.allocator import Answer, Verdict
from bullpen.core.claims.claim import Terms
from bullpen.core.claims.device_exchange import DeviceExchange
from bullpen.core.claims.ledger import Ledger

if TYPE_CHECKING:
    from bullpen.core.claims.claim_queue import WaitingClaim

SETS_MAX = 4
"""Sets that others are asked to make free for one claim."""

SETS_TOTAL_MAX = 48
"""The same for all claims of one pass that did not get theirs."""

IMAGINED_MAX = 64
"""Terms of which it is told after a pass whether they could have been served."""

REFINED_MAX = 64
"""Questions that are asked in one pass to find sets that fewer claims want."""

REFINED_BUDGET = 200
"""Combinations tried for each of them. If they do not suffice, the set is not used."""

Allocate = Callable[[Terms, Ledger, int], Answer]
"""What terms get of a ledger, with the devices that may be used."""

Rank = tuple[tuple[tuple[int, int], ...], bool, tuple[bool, ...]]
"""How good an answer is, the lowest best: see the order in ``allocator``."""


class GangClaims:
    """The claims for several devices of one pass."""

    def __init__(self, exchange: DeviceExchange, allocate: Allocate) -> None:
        """``allocate``: asks the allocator, within the budget of the pass."""
        self._exchange, self._allocate = exchange, allocate
        self._allocator, self._index = exchange.allocator, exchange.allocator.index
        self._refined = 0
        self._vain = 0
        """Sets that could not be made free."""

        self._imagined = 0

    def ask(self, claim: WaitingClaim, terms: Terms, usable: int) -> Answer:
        """What the claim gets of ``usable``."""
        found = self._allocate(terms, self._exchange.ledger, usable)
        if found.verdict is not Verdict.UNKNOWN and not claim.kept:
            found = self._with_room(terms, usable, found)
        if found.verdict is not Verdict.SATISFIED:
            return found
        return self._least_wanted(claim, terms, usable, found)

    def could_have(self, terms: Terms, usable: int) -> bool:
        """Whether terms could be served if others exchanged devices; nothing is exchanged."""
        if self._imagined == IMAGINED_MAX:
            return False
        self._imagined += 1
        wider = self._wider(self._reach(terms, usable))
        if self._allocate(terms, wider, usable).verdict is not Verdict.SATISFIED:
            return False
        trial = GangClaims(self._exchange.trial(), self._allocate)
        none = Answer(verdict=Verdict.UNSATISFIABLE)
        return trial._with_room(terms, usable, none).verdict is Verdict.SATISFIED

    # Room that others make

    def _with_room(self, terms: Terms, usable: int, found: Answer) -> Answer:
        """What the claim gets if others make room; ``found``: what it gets if they do not."""
        if found.verdict is Verdict.SATISFIED and self._is_best(terms, found):
            return found
        exchange = self._exchange
        reach = self._reach(terms, usable)
        for _ in range(SETS_MAX):
            if not reach or self._vain == SETS_TOTAL_MAX:
                break
            better = self._allocate(terms, self._wider(reach), usable)
            if better.verdict is not Verdict.SATISFIED or (
                found.verdict is Verdict.SATISFIED
                and self._rank(terms, better) >= self._rank(terms, found)
            ):
                break
            needed = bitsets.of(self._index.numbers[device] for device in better.devices)
            held = needed & ~exchange.ledger.unused
            stuck = exchange.make_all_free(held, needed=needed)
            if not stuck:
                return better
            self._vain += 1
            reach &= ~(stuck | exchange.stuck)
        return found

    def _reach(self, terms: Terms, usable: int) -> int:
        """What claims ahead have that could be of use, and may be exchanged."""
        exchange = self._exchange
        return self._allocator.usable(terms) & usable & exchange.movable & ~exchange.stuck

    def _wider(self, devices: int) -> Ledger:
        """What would be left if these devices were free."""
        ledger = self._exchange.ledger.copy()
        ledger.unused |= devices
        return ledger

    def _is_best(self, terms: Terms, found: Answer) -> bool:
        """Whether no other answer could be better."""
        only = not self._index.startable and all(
            len(r.alternatives) == 1 and not r.alternatives[0].totals for r in terms.requests
        )
        if only and not any(constraint.prefer for constraint in terms.constraints):
            return True
        return self._rank(terms, found) <= _best_rank(terms)

    def _rank(self, terms: Terms, answer: Answer) -> Rank:
        counts = dict.fromkeys((request.name for request in terms.requests), 0)
        for member in answer.members:
            counts[member.request] += 1
        chosen = answer.alternatives
        devices = (self._index.numbers[device] for device in answer.devices)
        return (
            tuple((chosen[name], count) for name, count in counts.items()),
            any(self._index.startable >> number & 1 for number in devices),
            tuple(c not in answer.preferred for c in terms.constraints if c.prefer),
        )

    # Devices that few claims want

    def _least_wanted(
        self, claim: WaitingClaim, terms: Terms, usable: int, found: Answer
    ) -> Answer:
        """An answer that is as good, and leaves to others what they want."""
        if claim.kept:
            return self._as_good(terms, usable & claim.kept, found) or found
        if self._refined == REFINED_MAX:
            return found
        demand = self._exchange.demand
        highest = max(demand.of(self._index.numbers[device]) for device in found.devices)
        answers: dict[int, Answer] = {}

        def suffices(most: int) -> bool:
            if self._refined == REFINED_MAX:
                return False
            self._refined += 1
            answer = self._as_good(terms, usable & demand.within(most), found)
            if answer is not None:
                answers[most] = answer
            return answer is not None

        if highest > 1 and suffices(highest - 1):
            bisect_left(range(1, highest - 1), True, key=suffices)
        return self._exchanged(terms, usable, answers[min(answers)] if answers else found)

    def _as_good(self, terms: Terms, usable: int, found: Answer) -> Answer | None:
        """An answer on fewer devices that is as good as another one; None if there is none."""
        ledger = self._exchange.ledger
        answer = self._allocator.allocate(terms, ledger, allowed=usable, budget=REFINED_BUDGET)
        if answer.verdict is not Verdict.SATISFIED:
            return None
        same = self._rank(terms, answer) == self._rank(terms, found)
        return answer if same and self._tiers(answer) == self._tiers(found) else None

    def _tiers(self, answer: Answer) -> list[int]:
        """How fast its devices start and how many taints they have."""
        return sorted(self._index.tier_of(self._index.numbers[d]) for d in answer.devices)

    def _exchanged(self, terms: Terms, usable: int, answer: Answer) -> Answer:
        """The answer with each device replaced by the least wanted one that is as good."""
        exchange, demand = self._exchange, self._exchange.demand
        taken = bitsets.of(self._index.numbers[device] for device in answer.devices)
        members = list(answer.members)
        for place, member in enumerate(members):
            number = self._index.numbers[member.device]
            worth = exchange.worth(terms, answer, member) & usable & exchange.ledger.untouched
            if worth & ~taken:
                other = demand.best(worth & ~taken)
                if demand.of(other) < demand.of(number):
                    members[place] = replace(member, device=self._index.devices[other].name)
                    taken ^= 1 << number | 1 << other
        return replace(answer, members=tuple(members))


def _best_rank(terms: Terms) -> Rank:
    """The rank of an answer that nothing could be better than."""
    return (
        tuple((0, request.alternatives[0].count) for request in terms.requests),
        False,
        tuple(False for c in terms.constraints if c.prefer),
    )
