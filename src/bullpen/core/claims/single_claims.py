"""Claims for one device that compete in one pass: who gets which, and who makes room for whom.

A claim for one device gets the best of its alternatives, and of an alternative the best devices,
that it can have while every claim ahead of it keeps what is as good: claims that were served in
the same pass exchange devices if that makes room (``device_exchange``). Devices are of equal
worth to a claim if they are of the same alternative, start as fast and have as many taints.
Which sets of claims can be served together is then a matroid, so serving one claim after the
other gives the best result for the first, then for the second, and so on.

Among devices of equal worth a claim takes those that the fewest waiting claims could use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bullpen.core.claims import bitsets
from bullpen.core.claims.allocator import Answer, Member, Verdict
from bullpen.core.claims.claim import Terms
from bullpen.core.claims.device_exchange import DeviceExchange

if TYPE_CHECKING:
    from bullpen.core.claims.claim_queue import WaitingClaim


class SingleClaims:
    """The claims for one device of one pass."""

    def __init__(self, exchange: DeviceExchange) -> None:
        self._exchange = exchange
        self._allocator, self._index = exchange.allocator, exchange.allocator.index

    def ask(self, claim: WaitingClaim, terms: Terms, usable: int) -> Answer | None:
        """What the claim gets; None if that needs a search, because counters are drawn."""
        self._allocator.questions += 1
        index, untouched = self._index, self._exchange.ledger.untouched
        for alternative, candidates in enumerate(self._allocator.candidates(terms)):
            reach = candidates & usable
            free = reach & untouched
            tier = index.tier_of(bitsets.lowest(free)) if free else len(index.tiers)
            best = self._made_free(claim, reach, tier) if tier else None
            if best is None and free:
                best = self._exchange.demand.best(free & index.tiers[tier], claim.kept)
                if index.drawing >> best & 1:
                    return None
            if best is not None:
                return self._answer(terms, alternative, best)
        return Answer(verdict=Verdict.UNSATISFIABLE)

    def _made_free(self, claim: WaitingClaim, reach: int, before: int) -> int | None:
        """A device of ``reach`` in a tier ``before`` that others can make free for the claim.

        None if there is none.
        """
        index, exchange = self._index, self._exchange
        held = 0 if claim.kept else reach & exchange.movable & ~exchange.stuck
        while held and (tier := index.tier_of(bitsets.lowest(held))) < before:
            found = exchange.make_free(held & index.tiers[tier])
            if found is not None:
                return found
            held &= ~index.tiers[tier]
        return None

    def _answer(self, terms: Terms, alternative: int, number: int) -> Answer:
        (request,) = terms.requests
        name = self._index.devices[number].name
        member = Member(request=request.name, alternative=alternative, device=name)
        return Answer(verdict=Verdict.SATISFIED, members=(member,))
