"""Whom a claim ends that cannot start otherwise: the cheapest holders that suffice, and no more.

A holder ends with all its devices: a part of a claim is of no use to it. What an earlier claim
of the same pass was given or promised is not free for a later one, and a holder ends only once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from bullpen.core.claims import bitsets
from bullpen.core.claims.allocator import Answer, Member, Verdict
from bullpen.core.claims.inventory import Amounts, Use
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.ledger import Ledger

if TYPE_CHECKING:
    from bullpen.core.claims.claim_queue import WaitingClaim

VICTIMS_MAX = 64
"""Holders that are considered for one claim, the cheapest first."""

Ask = Callable[[Ledger], Answer]
"""What the claim gets of a ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A lease or claim that has devices, and what may be done about it."""

    name: str
    since: datetime
    priority: int = 0
    preemptible: bool = False
    admin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """Who ends for a claim, and what it gets then."""

    holders: tuple[str, ...]
    answer: Answer
    kept: tuple[Member, ...]
    """What of it is free already, and is kept for the claim."""


class PreemptionVictims:
    """The holders of one pass, and which of them have to end already."""

    def __init__(
        self,
        index: InventoryIndex,
        ledger: Ledger,
        uses: Iterable[Use],
        holders: Mapping[str, Holder],
        *,
        now: datetime,
        held_min: timedelta,
    ) -> None:
        """``ledger``: what the pass has left; it goes on handing out from it.

        ``uses``: who had what before the pass. ``held_min``: how long a holder keeps its devices.
        """
        self._index, self._ledger, self._uses = index, ledger, uses
        self._holders, self._now, self._held_min = holders, now, held_min
        self._ended: set[str] = set()
        self._endable: dict[tuple[int, bool], int] = {}

    def of(self, claim: WaitingClaim, usable: int, ask: Ask) -> Victims | None:
        """Who ends for a claim that could use these devices; None if that does not help.

        What it gets is taken from the ledger, so that it is kept for it.
        """
        victims = self._cheapest(claim, usable) if self._holders else []
        if not victims or not self._suffices(victims, ask):
            return None
        # The more holders end, the more is free: the shortest list is found by bisection.
        shortest = bisect_left(
            range(1, len(victims)), True, key=lambda count: self._suffices(victims[:count], ask)
        )
        chosen = victims[: shortest + 1]
        for victim in list(chosen):
            rest = [other for other in chosen if other is not victim]
            if rest and self._suffices(rest, ask):
                chosen = rest
        answer = ask(self._without(chosen))
        self._ended |= {victim.name for victim in chosen}
        kept = self._keep(answer, chosen)
        return Victims(holders=tuple(h.name for h in chosen), answer=answer, kept=kept)

    def _cheapest(self, claim: WaitingClaim, usable: int) -> list[Holder]:
        """Holders of devices that the claim could use, which may be ended for it."""
        found = {
            holder
            for number in bitsets.members(usable & self._endable_devices(claim))
            for holder in self._by_device[number]
        }
        ranked = (self._ranked[n] for n in sorted(found))
        ending = [h for h in ranked if h.name not in self._ended and self._may_end(claim, h)]
        return ending[:VICTIMS_MAX]

    def _endable_devices(self, claim: WaitingClaim) -> int:
        """The devices of holders that may be ended for claims like this one."""
        key = (claim.priority, claim.admin)
        found = self._endable.get(key)
        if found is None:
            ending = (h for h in self._ranked if self._may_end(claim, h))
            found = bitsets.of(number for h in ending for number, _ in self._held.get(h.name, ()))
            self._endable[key] = found
        return found

    def _may_end(self, claim: WaitingClaim, holder: Holder) -> bool:
        if claim.admin:
            return not holder.admin
        return (
            holder.preemptible
            and holder.priority < claim.priority
            and self._now - holder.since >= self._held_min
        )

    def _suffices(self, victims: Sequence[Holder], ask: Ask) -> bool:
        return ask(self._without(victims)).verdict is Verdict.SATISFIED

    def _without(self, victims: Iterable[Holder]) -> Ledger:
        """What is left when these holders have ended."""
        ledger = self._ledger.copy()
        for victim in victims:
            for number, share in self._held.get(victim.name, ()):
                ledger.give_back(number, share)
        return ledger

    def _keep(self, answer: Answer, victims: Sequence[Holder]) -> tuple[Member, ...]:
        """Take what is free already; what the holders lose besides is free when they ended."""
        theirs = {number for victim in victims for number, _ in self._held[victim.name]}
        numbers = self._index.numbers
        kept = tuple(m for m in answer.members if numbers[m.device] not in theirs)
        for member in kept:
            self._ledger.take(numbers[member.device], member.share)
        return kept

    # Made when the first claim needs them: most passes end no lease.

    @cached_property
    def _held(self) -> Mapping[str, list[tuple[int, Amounts | None]]]:
        """What each holder has."""
        found: dict[str, list[tuple[int, Amounts | None]]] = {}
        for use in self._uses:
            number = self._index.numbers.get(use.device)
            if number is not None and use.holder in self._holders:
                found.setdefault(use.holder, []).append((number, use.share))
        return found

    @cached_property
    def _ranked(self) -> list[Holder]:
        """The cheapest first: of the lowest priority, then who has had its devices least long."""
        return sorted(
            self._holders.values(), key=lambda h: (h.priority, self._now - h.since, h.name)
        )

    @cached_property
    def _by_device(self) -> Mapping[int, list[int]]:
        """By device, the positions of its holders in ``_ranked``."""
        found: dict[int, list[int]] = {}
        for position, holder in enumerate(self._ranked):
            for number, _ in self._held.get(holder.name, ()):
                found.setdefault(number, []).append(position)
        return found
