"""Which waiting claims get devices now, and what the others wait for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import assert_never

from bullpen.api.kinds.deviceclaim import MEMBERS_MAX, DeviceClaim
from bullpen.api.kinds.lease import Lease
from bullpen.core.claims import bitsets, claim_lifecycle, member_replacement, pool_allocations
from bullpen.core.claims.allocation_record import AllocationRecords
from bullpen.core.claims.allocator import Answer
from bullpen.core.claims.claim import Terms
from bullpen.core.claims.claim_bookings import ClaimBookings
from bullpen.core.claims.claim_indexes import ClaimIndexes
from bullpen.core.claims.claim_lab import (
    ClaimDecision,
    ClaimLab,
    Hold,
    Preempted,
    PreemptedLease,
    Serve,
    holder_name,
    offered_inventory,
)
from bullpen.core.claims.claim_queue import (
    Book,
    Decided,
    Decision,
    Preempt,
    Queue,
    Reservation,
    Start,
    Wait,
    WaitingClaim,
    WaitReason,
    decide_all,
)
from bullpen.core.claims.claim_waits import ClaimWaits
from bullpen.core.claims.explanation import Explanation, explain
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.kept_devices import KeptDevices
from bullpen.core.claims.lab_inventory import (
    class_definition,
    terms_of,
)
from bullpen.core.claims.preemption_victims import Holder
from bullpen.core.claims.why_not import why_not
from bullpen.core.claims.work import BUDGET, PassBudget
from bullpen.core.leases import access, preemption, quotas
from bullpen.core.leases.lease_group import claim_uid, pinned
from bullpen.core.leases.preemption import Taker
from bullpen.core.leases.quotas import Usage
from bullpen.core.leases.requests import Lab
from bullpen.kit import times


def decide_claims(
    lab: ClaimLab, *, now: datetime, indexes: ClaimIndexes | None = None, budget: int = BUDGET
) -> tuple[ClaimDecision, ...]:
    """One decision for each waiting claim, in the order in which they are served.

    Besides, one for each claim that ends for another.
    """
    return tuple(_Pass(lab, now, indexes or ClaimIndexes(), budget).run())


def dry_run(
    lab: ClaimLab,
    claim: DeviceClaim,
    *,
    now: datetime,
    waited: timedelta,
    indexes: ClaimIndexes | None = None,
    budget: PassBudget | None = None,
) -> Explanation:
    """What a claim would get if it had waited so long and no other claim waited."""
    answering = _Pass(lab, now, indexes or ClaimIndexes(), BUDGET)
    return answering.explained(claim, waited, budget or PassBudget(BUDGET))


def why_not_devices(
    lab: ClaimLab, claim: DeviceClaim, names: Sequence[str], *, now: datetime
) -> dict[str, tuple[str, ...]]:
    """For each of these devices what keeps it from a claim, by alternative."""
    answering = _Pass(lab, now, ClaimIndexes(), BUDGET)
    return {name: answering.why_not(claim, name) for name in names}


class _Pass:
    def __init__(self, lab: ClaimLab, now: datetime, indexes: ClaimIndexes, budget: int) -> None:
        self._lab, self._now, self._indexes, self._budget = lab, now, indexes, budget
        self._classes = tuple(class_definition(found) for found in lab.classes)
        self._inventory = offered_inventory(lab, now)
        indexes.start(lab, now)
        self._allocator = indexes.allocator("offered", self._inventory, self._classes)
        self._waits = ClaimWaits(
            lab,
            self._allocator,
            self._inventory,
            indexes,
            self._classes,
            now,
            self._booked_by_others,
        )
        booked = Lab(
            offers=lab.offers,
            requests=(),
            policies=lab.policies,
            supplies=lab.supplies,
            bookings=lab.bookings,
        )
        self._bookings = ClaimBookings(booked, lab.leases)

    def run(self) -> Iterator[ClaimDecision]:
        waiting: dict[str, DeviceClaim] = {}
        for claim in self._lab.claims:
            refusal = self._refusal(claim)
            if refusal is None and self._suffices(claim):
                yield self._booked_hold(claim)
            elif refusal is None:
                waiting[claim.metadata.name] = claim
            else:
                yield refusal
        claims = {name: self._waiting(claim) for name, claim in waiting.items()}
        decided = self._decided(claims)
        # What a claim beyond its quota would get, others can have.
        while over := self._over_quota(decided.decisions, waiting):
            yield from over
            for hold in over:
                del claims[hold.claim.metadata.name]
            decided = self._decided(claims)
        for decision in decided.decisions:
            claim, asked = waiting[decision.claim], claims[decision.claim]
            match decision:
                case Start(answer=answer):
                    yield self._served(claim, self._in_its_terms(claim, asked, answer))
                case Preempt():
                    yield from self._preempting(claim, decision)
                case Book(answer=answer, begin=begin):
                    yield self._served(claim, answer, begin)
                case Wait() if self._bookings.leases(claim):
                    # Nothing better was found, so it keeps what it has booked.
                    yield self._booked_hold(claim)
                case Wait():
                    retry = self._next_victim(claim)
                    yield self._waits.hold(claim, asked, decision, decided.left, retry=retry)
                case _:
                    assert_never(decision)

    def _served(
        self, claim: DeviceClaim, answer: Answer, begin: datetime | None = None
    ) -> Serve | Hold:
        allocation = self._records.of(claim, answer)
        problem = self._records.problem(allocation)
        if problem:
            return Hold(claim=claim, reason="ConfigTooLarge", message=problem)
        return Serve(claim, answer, begin, allocation)

    @cached_property
    def _records(self) -> AllocationRecords:
        lab = self._lab
        return AllocationRecords(self._allocator, lab.classes, lab.exporters, lab.pools)

    def explained(self, claim: DeviceClaim, waited: timedelta, budget: PassBudget) -> Explanation:
        begin = claim.spec.begin_time
        moment = self._now if begin is None else max(self._now, begin)
        found = explain(
            self._allocator,
            terms_of(claim.spec),
            self._inventory.uses,
            now=moment,
            waited=waited + (moment - self._now),
            allowed=self._allowed(claim, self._allocator.index),
            duration=claim.spec.duration,
            reservations=self._booked_by_others(claim),
            budget=budget,
        )
        return replace(found, booked=moment > self._now)

    def _booked_by_others(self, claim: DeviceClaim) -> tuple[Reservation, ...]:
        own = {claim.metadata.uid}
        return tuple(self._bookings.reservations(self._allocator.index, besides=own))

    def why_not(self, claim: DeviceClaim, device: str) -> tuple[str, ...]:
        allocator, uses = self._allocator, self._inventory.uses
        uses = tuple(use for use in uses if use.until is None or use.until > self._now)
        allowed = self._allowed(claim, allocator.index)
        end = times.shifted(self._now, claim.spec.duration)
        reserved = tuple(r for r in self._booked_by_others(claim) if r.overlaps(self._now, end))
        return why_not(
            allocator, terms_of(claim.spec), uses, device, allowed=allowed, reserved=reserved
        )

    def _decided(self, claims: Mapping[str, WaitingClaim]) -> Decided:
        own = {c.metadata.uid for c in self._lab.claims if c.metadata.name in claims}
        queue = Queue(
            claims=tuple(claims.values()),
            uses=self._inventory.uses,
            handicaps=self._lab.handicaps,
            holders=self._holders,
            held_min=self._lab.preemption.held_min,
            reservations=tuple(self._bookings.reservations(self._allocator.index, besides=own)),
        )
        return decide_all(self._allocator, queue, now=self._now, budget=self._budget)

    def _refusal(self, claim: DeviceClaim) -> Hold | None:
        """Why the claim is not decided at all."""
        client = claim.spec.client_ref.name
        if client not in self._lab.clients:
            text = f"there is no client {client} in the namespace"
            return Hold(claim=claim, reason="ClientNotFound", message=text)
        problem = quotas.too_long(self._lab.quotas, claim.spec.duration)
        return Hold(claim=claim, reason="QuotaExceeded", message=problem) if problem else None

    def _over_quota(
        self, decisions: Sequence[Decision], waiting: Mapping[str, DeviceClaim]
    ) -> tuple[Hold, ...]:
        """The claims that would start, but have more devices than they or their client may."""
        active = dict(self._lab.active)
        over = []
        for decision in decisions:
            if not isinstance(decision, Start | Book):
                continue
            claim, size = waiting[decision.claim], len(decision.answer.members)
            client = claim.spec.client_ref.name
            leased = sum(not pool_allocations.is_pool_device(d) for d in decision.answer.devices)
            if size > MEMBERS_MAX:
                text = f"all that match are {size} devices; a claim has at most {MEMBERS_MAX}"
                over.append(Hold(claim=claim, reason="TooManyDevices", message=text))
            if size > MEMBERS_MAX or isinstance(decision, Book):
                # What is booked counts when it begins.
                continue
            problem = quotas.too_many_active(
                self._lab.quotas,
                access.allowance(self._lab.policies, client=self._lab.clients[client]),
                Usage(active=active.get(client, 0)),
                client=client,
                more=leased,
            )
            if problem and leased:
                over.append(Hold(claim=claim, reason="QuotaExceeded", message=problem))
            else:
                active[client] = active.get(client, 0) + leased
        return tuple(over)

    def _waiting(self, claim: DeviceClaim) -> WaitingClaim:
        spec, since = claim.spec, claim.metadata.creation_timestamp
        assert since is not None
        terms, duration = terms_of(spec), spec.duration
        allowed = self._allowed(claim, self._allocator.index)
        if claim.status.members:
            terms, duration = self._replacement(claim, terms)
            # Only exporters are replaced.
            allowed &= ~self._pool_devices
        return WaitingClaim(
            name=claim.metadata.name,
            terms=terms,
            since=since,
            duration=duration,
            tenant=spec.client_ref.name,
            priority=spec.rank,
            admin=spec.admin_access,
            begin=spec.begin_time,
            allowed=allowed,
            kept=self._kept.of(claim),
        )

    @cached_property
    def _kept(self) -> KeptDevices:
        return KeptDevices(self._allocator.index, self._lab.leases, self._held)

    # Lost members

    @cached_property
    def _pool_devices(self) -> int:
        devices = enumerate(self._allocator.index.devices)
        return bitsets.of(n for n, x in devices if pool_allocations.is_pool_device(x.name))

    def _replacement(self, claim: DeviceClaim, terms: Terms) -> tuple[Terms, timedelta]:
        """What a claim that keeps some of its members needs for the others, and for how long."""
        leases = [x for x in self._lab.leases if claim_uid(x) == claim.metadata.uid]
        lost = member_replacement.lost_members(claim, member_replacement.kept_leases(leases))
        kept = [member for member in claim.status.members if member not in lost]
        devices = {device.name: device for device in self._inventory.devices}
        needed = member_replacement.replacement_terms(terms, lost, kept, devices)
        return needed, member_replacement.rest(leases, now=self._now)

    def _in_its_terms(self, claim: DeviceClaim, asked: WaitingClaim, answer: Answer) -> Answer:
        """The answer with the numbers that the alternatives have in the claim itself."""
        if not claim.status.members:
            return answer
        own = {r.name: [a.name for a in r.alternatives] for r in terms_of(claim.spec).requests}
        told = {r.name: [a.name for a in r.alternatives] for r in asked.terms.requests}
        members = (
            replace(m, alternative=own[m.request].index(told[m.request][m.alternative]))
            for m in answer.members
        )
        return replace(answer, members=tuple(members))

    # Preemption

    @cached_property
    def _holders(self) -> Mapping[str, Holder]:
        """The claims that have devices, as the queue sees them; and leases if one may end them."""
        begun = {claim_uid(x): x.status.begin_time for x in self._lab.leases if claim_uid(x)}
        found = [
            Holder(
                name=holder_name(claim),
                since=begun.get(claim.metadata.uid) or claim_lifecycle.since(claim) or self._now,
                priority=claim.spec.rank,
                preemptible=claim.spec.preemptible,
                admin=claim.spec.admin_access,
            )
            for claim in self._lab.served
        ]
        if any(claim.spec.admin_access for claim in self._lab.claims):
            found += (
                Holder(name=name, since=lease.status.begin_time or self._now)
                for name, lease in self._plain_leases.items()
            )
        return {holder.name: holder for holder in found}

    @cached_property
    def _plain_leases(self) -> Mapping[str, Lease]:
        """By name, the leases that no claim owns."""
        return {lease.metadata.name: lease for lease in self._lab.leases if not claim_uid(lease)}

    def _next_victim(self, claim: DeviceClaim) -> datetime | None:
        """When the next holder has had its devices for so long that it can be ended."""
        moments = (
            times.shifted(holder.since, self._lab.preemption.held_min)
            for holder in self._holders.values()
            if holder.preemptible and holder.priority < claim.spec.priority
        )
        return min((moment for moment in moments if moment > self._now), default=None)

    def _preempting(self, claim: DeviceClaim, decision: Preempt) -> Iterator[ClaimDecision]:
        """Ends others for the claim, which waits until they have ended."""
        claims = [c for c in self._lab.served if holder_name(c) in decision.holders]
        leases = [self._plain_leases[x] for x in decision.holders if x in self._plain_leases]
        grace = self._lab.preemption.grace
        told = [c.status.conditions for c in claims] + [x.status.conditions for x in leases]
        starts = [preemption.ends_at(said, grace=grace, now=self._now) for said in told]
        names = ", ".join(decision.holders)
        by = Taker(claim.metadata.name, admin=claim.spec.admin_access)
        why = "" if by.admin else " with a lower priority"
        yield Hold(
            claim=claim,
            reason="Preempting",
            message=f"{names}{why} ends for it",
            kept=decision.devices,
            starts=max(starts),
        )
        yield from (Preempted(victim, by) for victim in claims)
        yield from (PreemptedLease(lease, by) for lease in leases)

    def _allowed(self, claim: DeviceClaim, index: InventoryIndex) -> int:
        return self._indexes.allowed(claim, index)

    def _suffices(self, claim: DeviceClaim) -> bool:
        """Whether what the claim has booked will do."""
        if claim.spec.begin_time is None:
            return False
        index, held = self._allocator.index, self._held.get(claim.metadata.uid, ())
        leases = self._bookings.leases(claim)
        if held and held[0][1].members != len(held) + len(leases):
            return False
        return bool(held and not leases) or self._bookings.suffices(
            claim, index, allowed=self._allowed(claim, index)
        )

    @cached_property
    def _held(self) -> Mapping[str, pool_allocations.Held]:
        return pool_allocations.held_by_claim(self._lab.pools)

    def _booked_hold(self, claim: DeviceClaim) -> Hold:
        leases, begin = self._bookings.leases(claim), claim.spec.begin_time
        told = claim_lifecycle.wait_of(leases)
        assert begin is not None
        return Hold(
            claim=claim,
            reason=told.reason if told is not None else WaitReason.RESERVED.value,
            message=told.message if told is not None else f"it begins at {times.text(begin)}",
            wake_at=begin if begin > self._now else None,
            # When its leases begin to wait they are not booked any more.
            kept=tuple(pinned(lease) for lease in leases if pinned(lease)),
            starts=begin,
            booked=True,
        )
