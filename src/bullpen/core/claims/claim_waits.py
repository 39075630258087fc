"""What a claim is told that waits: the reason, and what is missing, as things are after the pass.

What earlier claims of the pass get or have reserved is not free for it. What they could exchange
is: a change of the claim that helps then is told too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property

from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.core.claims.allocator import Allocator, Verdict
from bullpen.core.claims.claim_indexes import ClaimIndexes
from bullpen.core.claims.claim_lab import ClaimLab, Hold, offered_inventory
from bullpen.core.claims.claim_queue import Left, Reservation, Wait, WaitingClaim, WaitReason
from bullpen.core.claims.criteria import ClassDefinition
from bullpen.core.claims.explanation import explain
from bullpen.core.claims.inventory import Inventory, Use
from bullpen.core.claims.lab_inventory import OFFLINE
from bullpen.core.claims.ledger import Ledger
from bullpen.core.claims.startable_devices import with_all_slots
from bullpen.core.claims.work import BUDGET, PassBudget
from bullpen.kit import times

EXPLAINED_MAX = 32
"""Waiting claims that are given a full explanation in one pass."""

MESSAGE_MAX = 1024

UNKNOWN_RETRY = timedelta(minutes=1)
"""When a claim is tried again whose answer was not found within the work budget."""


class ClaimWaits:
    """The claims of one pass that wait."""

    def __init__(
        self,
        lab: ClaimLab,
        allocator: Allocator,
        inventory: Inventory,
        indexes: ClaimIndexes,
        classes: tuple[ClassDefinition, ...],
        now: datetime,
        booked: Callable[[DeviceClaim], Sequence[Reservation]],
    ) -> None:
        """``booked``: what others had booked before the pass."""
        self._lab, self._allocator, self._inventory = lab, allocator, inventory
        self._indexes, self._classes, self._now = indexes, classes, now
        self._booked = booked
        self._explained, self._budget = 0, PassBudget(BUDGET)

    def hold(
        self,
        claim: DeviceClaim,
        asked: WaitingClaim,
        decision: Wait,
        left: Callable[[], Left],
        *,
        retry: datetime | None,
    ) -> Hold:
        """What the claim is told. ``retry``: when it is looked at again in any case."""
        reason = decision.reason
        if reason is WaitReason.UNSATISFIABLE and self._serves_on(self._with_slots, claim, asked):
            text = "pools could start what is missing, but their providers have no free slots"
            return Hold(claim=claim, reason=WaitReason.NOT_AVAILABLE.value, message=text)
        if reason is WaitReason.UNSATISFIABLE and self._serves_on(self._connected, claim, asked):
            text = "enough exporters match, but too few of them are connected"
            return Hold(claim=claim, reason="Offline", message=text)
        if reason is WaitReason.NOT_DUE:
            text = "none of its alternatives is open yet"
            return Hold(claim=claim, reason=reason.value, message=text)
        if reason is WaitReason.UNKNOWN:
            retry = times.shifted(self._now, UNKNOWN_RETRY)
        return Hold(
            claim=claim,
            reason=reason.value,
            message=self._message(claim, asked, left),
            wake_at=retry,
            kept=decision.devices,
            starts=decision.starts,
        )

    def _message(
        self, claim: DeviceClaim, asked: WaitingClaim, what_is_left: Callable[[], Left]
    ) -> str:
        """What is missing. Times are left out: each of them would be another write."""
        self._explained += 1
        if self._explained > EXPLAINED_MAX:
            return "other claims are served first"
        left = what_is_left()
        found = explain(
            self._allocator,
            asked.terms,
            tuple(self._uses(left)),
            now=self._now,
            waited=self._now - asked.since,
            allowed=asked.allowed,
            duration=asked.duration,
            reservations=(*self._booked(claim), *self._reserved(asked, left)),
            with_room=left.with_room,
            budget=self._budget,
        )
        said = [str(reason) for reason in found.reasons]
        said += [f"{x.holder} has {', '.join(x.devices)}" for x in found.blockers]
        said += [f"{', '.join(x.devices)} kept for {x.holder}" for x in found.kept]
        if found.relaxation:
            said.append(f"it would be served at once with this change: {found.relaxation}")
        return ("; ".join(said) or "the devices it needs are not free")[:MESSAGE_MAX]

    def _uses(self, left: Left) -> Iterator[Use]:
        """Who has what: claims that are served in this pass are named as they are afterwards."""
        yield from self._inventory.uses
        for use in left.given:
            yield replace(use, holder=f"claim {use.holder}")

    def _reserved(self, asked: WaitingClaim, left: Left) -> Iterator[Reservation]:
        """What this pass keeps for others."""
        for each in left.reserved:
            if each.claim != asked.name:
                yield replace(each, claim=f"claim {each.claim}")

    def _serves_on(self, other: Allocator, claim: DeviceClaim, asked: WaitingClaim) -> bool:
        """Whether the claim could be served on another lab, if everything in it were free."""
        allowed = self._indexes.allowed(claim, other.index)
        answer = other.allocate(asked.terms, Ledger(other.index), allowed=allowed)
        return answer.verdict is Verdict.SATISFIED

    @cached_property
    def _with_slots(self) -> Allocator:
        """The lab with providers that have slots for everything that pools could start."""
        if not any(supply.slots is not None for supply in self._lab.supplies):
            return self._allocator
        supplies = with_all_slots(self._lab.supplies)
        whole = offered_inventory(replace(self._lab, supplies=supplies), self._now)
        return self._indexes.allocator("with slots", whole, self._classes)

    @cached_property
    def _connected(self) -> Allocator:
        """The lab with every exporter free and connected."""
        devices = tuple(
            replace(device, blocked="") if device.blocked == OFFLINE else device
            for device in self._inventory.devices
        )
        whole = Inventory(devices=devices, counters=self._inventory.counters)
        return self._indexes.allocator("connected", whole, self._classes)
