"""Turns DeviceClaims into leases: observes, asks ``core.claims``, creates and releases leases.

It assigns nothing. The leases of a claim say that they belong together, and the controller of
leases gives all of them their exporters or none (``core.leases.lease_group``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from bullpen.api.kinds.deviceclaim import DeviceClaim, DeviceClaimStatus
from bullpen.api.kinds.exporterset import SET_NAME
from bullpen.api.kinds.lease import Lease
from bullpen.api.objects import Objects
from bullpen.controllers.claims.claim_labs import ClaimLabs
from bullpen.controllers.claims.pool_holdings import PoolHoldings
from bullpen.controllers.claims.preempted_leases import PreemptedLeases
from bullpen.controllers.labs import Labs
from bullpen.controllers.object_edit import change, change_status, together
from bullpen.controllers.pass_pause import PassPauses
from bullpen.controllers.views import Views
from bullpen.core import conditions
from bullpen.core.claims import claim_lifecycle, member_replacement
from bullpen.core.claims.claim_indexes import ClaimIndexes
from bullpen.core.claims.claim_lab import (
    ClaimDecision,
    Hold,
    Preempted,
    PreemptedLease,
    Serve,
    reservation,
)
from bullpen.core.claims.claim_lifecycle import Create, Withdraw
from bullpen.core.claims.claim_pass import decide_claims
from bullpen.core.claims.work import loop_budget
from bullpen.core.leases import preemption
from bullpen.core.leases.lease_group import claim_uid, group_size
from bullpen.core.leases.preemption import PREEMPTED, PreemptionTimes, Taker
from bullpen.core.leases.quotas import Quotas
from bullpen.core.leases.requests import Request, Supply
from bullpen.errors import AlreadyExists, Conflict, NotFound
from bullpen.kit import times
from bullpen.kit.clock import Clock
from bullpen.runtime.events import Events
from bullpen.runtime.informer import Key, key_of
from bullpen.runtime.loop import Outcome

PACE = timedelta(microseconds=200)
"""Pause between passes, for each waiting claim and exporter: about nine times as long as a pass."""

PAUSE_MAX = timedelta(seconds=10)

CONFLICT_RETRY = timedelta(seconds=1)
"""When a claim is looked at again whose objects changed while they were written."""

WITHDRAWN_PAUSE = timedelta(seconds=5)
"""How soon a lease is created again that was withdrawn.

A pool that cannot start what is asked of it may say so only as long as it is asked.
"""


class ClaimReconciler:
    """Reconciles one namespace at a time: claims compete, so they are decided together."""

    name = "claims"

    def __init__(
        self,
        objects: Objects,
        views: Views,
        labs: Labs,
        *,
        quotas: Quotas,
        preemption: PreemptionTimes,
        retention: timedelta,
        clock: Clock,
        events: Events,
        leases_due: Callable[[str], None],
        supplies: Callable[[str], tuple[Supply, ...]],
    ) -> None:
        """``quotas``: the limits of one client. ``retention``: how long ended claims are kept.

        ``preemption``: when claims end for others. ``leases_due`` starts a pass over the waiting
        leases of a namespace. ``supplies``: what its pools could create.
        """
        self._objects = objects
        self._views = views
        self._claims = views[DeviceClaim]
        self._labs = labs
        self._claim_labs = ClaimLabs(views, labs, quotas, supplies, preemption=preemption)
        self._preemption = preemption
        self._preempted_leases = PreemptedLeases(
            objects, views, labs, events=events, grace=preemption.grace
        )
        self._holdings = PoolHoldings(objects, views)
        self._indexes: dict[str, ClaimIndexes] = {}
        self._loops = loop_budget()
        """What expressions of claims may take, in all namespaces together."""

        self._pauses: PassPauses[str] = PassPauses(PACE, PAUSE_MAX)
        self._withdrawn: dict[Key, datetime] = {}
        """Leases that were withdrawn a short time ago, and when."""

        self._retention = retention
        self._clock = clock
        self._events = events
        self._leases_due = leases_due

    async def reconcile(self, namespace: str) -> Outcome:
        now = self._clock.now()
        resting = self._pauses.until(namespace, now=now)
        if resting is not None:
            return Outcome(wake_at=resting)
        claims = [c for c in self._claims.all(namespace) if c.metadata.deletion_timestamp is None]
        claims.sort(key=key_of)
        self._withdrawn = {
            key: at for key, at in self._withdrawn.items() if now - WITHDRAWN_PAUSE < at <= now
        }
        self._holdings.look(namespace, now)
        open_claims = [claim for claim in claims if not claim.status.ended]
        waiting = [claim for claim in open_claims if self._waits(claim, now)]
        others = {claim.metadata.uid for claim in waiting}
        having = [claim for claim in open_claims if claim.metadata.uid not in others]
        acts = [self._forget(claim, now) for claim in claims if claim.status.ended]
        decisions = self._decided(namespace, waiting, having, now)
        wanted = {d.claim.metadata.uid: d.by for d in decisions if isinstance(d, Preempted)}
        acts += [self._settle(c, wanted.get(c.metadata.uid), now) for c in having]
        taken = {d.lease.metadata.name: d.by for d in decisions if isinstance(d, PreemptedLease)}
        acts += self._preempted_leases.acts(namespace, taken, now=now)
        acts += [self._perform(d, now) for d in decisions if isinstance(d, Serve | Hold)]
        acts += [self._holdings.sweep(namespace, open_claims)]
        errors = [error for error in await together(acts) if error is not None]
        for error in errors:
            if not isinstance(error, Conflict | NotFound | AlreadyExists):
                raise error
        wakes = [times.shifted(now, CONFLICT_RETRY)] if errors else []
        wakes += [w for c in waiting if (w := claim_lifecycle.widens_at(c, now=now)) is not None]
        wakes += [d.wake_at for d in decisions if isinstance(d, Hold) and d.wake_at is not None]
        wakes += [at for c in waiting if (at := claim_lifecycle.missed_at(c)) is not None]
        told = [c for c in having if self._told(c) or c.metadata.uid in wanted]
        wakes += [self._grace_ends(c, now) for c in told]
        wakes += [preemption.settles_at(c.status.conditions) for c in having]
        wakes += self._preempted_leases.wakes(namespace, now=now)
        wakes += [self._kept_until(c) for c in claims if c.status.ended]
        wakes += [at for c in having if (at := claim_lifecycle.pools_until(c, now=now)) is not None]
        wakes += [times.shifted(at, WITHDRAWN_PAUSE) for at in self._withdrawn.values()]
        wakes += self._holdings.wakes()
        return Outcome(wake_at=min((wake for wake in wakes if wake > now), default=None))

    def _decided(
        self,
        namespace: str,
        waiting: list[DeviceClaim],
        having: list[DeviceClaim],
        now: datetime,
    ) -> tuple[ClaimDecision, ...]:
        """Decide about waiting claims. A pause follows: others need the process too."""
        if not waiting:
            self._indexes.pop(namespace, None)
            self._pauses.forget(namespace)
            self._reserve(namespace, ())
            return ()
        served = tuple(claim for claim in having if claim.status.members)
        lab = self._claim_labs.of(namespace, tuple(waiting), served, now=now)
        indexes = self._indexes.setdefault(namespace, ClaimIndexes(self._loops))
        decisions = decide_claims(lab, now=now, indexes=indexes)
        self._reserve(namespace, (reservation(lab, decision) for decision in decisions))
        self._pauses.begin(namespace, len(waiting) + len(lab.exporters), now=now)
        return decisions

    def _reserve(self, namespace: str, reserved: Iterable[Request | None]) -> None:
        """Keep what claims are to get from leases that go after them."""
        index = self._labs.of(namespace).requests
        if index.reserve(request for request in reserved if request is not None):
            self._leases_due(namespace)

    # What claims have

    def _leases(self, claim: DeviceClaim) -> tuple[Lease, ...]:
        return self._labs.of(claim.metadata.namespace).groups.of(claim.metadata.uid)

    def _waits(self, claim: DeviceClaim, now: datetime) -> bool:
        leases = self._leases(claim)
        if member_replacement.replacing(claim, leases, now=now):
            return True
        held = self._holdings.of(claim)
        if claim.spec.release or claim_lifecycle.member_lost(claim, leases, held):
            return False
        if claim.status.members or self._has_all(claim, leases, now):
            return False
        over = claim_lifecycle.missed_at(claim)
        if over is not None and over <= now:
            return False
        return not claim_lifecycle.being_assigned(leases, self._holders(leases))

    def _has_all(self, claim: DeviceClaim, leases: tuple[Lease, ...], now: datetime) -> bool:
        begin = claim.spec.begin_time
        begun = claim.status.members or begin is None or begin <= now
        return bool(begun) and claim_lifecycle.allocated(claim, leases, self._holdings.of(claim))

    def _holders(self, leases: tuple[Lease, ...]) -> frozenset[str]:
        return frozenset(
            name
            for namespace, name in map(key_of, leases)
            if self._labs.of(namespace).taken_by(name)
        )

    async def _settle(self, claim: DeviceClaim, by: Taker | None, now: datetime) -> None:
        """Keep a claim and the leases that it has consistent, or end it with all of them.

        ``by``: the claim that it ends for, if it does.
        """
        leases, held = self._leases(claim), self._holdings.of(claim)
        over = claim_lifecycle.pools_until(claim, now=now)
        if claim.spec.release:
            await self._end(claim, "Released", "the claim was released", now)
        elif by is not None and self._told(claim) and self._grace_ends(claim, now) <= now:
            await self._end(claim, "Preempted", f"{by} needed its devices", now)
        elif over is not None and over <= now:
            await self._end(claim, "Expired", "the claim reached its end time", now)
        elif claim_lifecycle.member_lost(claim, leases, held):
            reason, message = await self._loss(claim)
            if reason:
                await self._end(claim, reason, message, now)
        elif self._has_all(claim, leases, now):
            for lease in leases:
                await change(
                    self._objects,
                    self._views.leases,
                    lease,
                    lambda found: claim_lifecycle.following(found, claim),
                )
            await self._say(claim, lambda c: claim_lifecycle.has_all(c, leases, held, now=now))
            await self._announce(claim, by, now)
        elif claim_lifecycle.surplus(leases):
            for lease in claim_lifecycle.surplus(leases):
                await self._objects.delete(lease)
        elif not claim_lifecycle.being_assigned(leases, self._holders(leases)):
            text = "the time it was booked for passed before it could be served"
            await self._end(claim, "Expired", text, now)

    def _told(self, claim: DeviceClaim) -> bool:
        """Whether the claim was told that it ends for another one."""
        return preemption.told(claim.status.conditions)

    def _grace_ends(self, claim: DeviceClaim, now: datetime) -> datetime:
        grace = self._preemption.grace
        return preemption.ends_at(claim.status.conditions, grace=grace, now=now)

    async def _announce(self, claim: DeviceClaim, by: Taker | None, now: datetime) -> None:
        """Tell a claim that it ends soon for another one, or that it does not any more."""
        before = self._told(claim)
        if (by is not None) == before:
            return

        def told(found: DeviceClaim) -> DeviceClaimStatus:
            said = preemption.telling(
                found.status.conditions,
                by,
                grace=self._preemption.grace,
                generation=found.metadata.generation,
                now=now,
            )
            return replace(found.status, conditions=said)

        written = await change_status(self._objects, self._claims, claim, told)
        said = conditions.get(written.status.conditions, PREEMPTED)
        if said is not None and self._told(written) != before:
            self._events.emit(written, reason=f"Claim{said.reason}", message=said.message)

    async def _loss(self, claim: DeviceClaim) -> tuple[str, str]:
        """Why a claim with a lost member ends; empty if the view was only behind.

        Ending a claim cannot be undone, so the API itself is read.
        """
        gone = await self._holdings.lost(claim)
        if gone:
            return "MemberLost", f"device {gone} is not in its DevicePool any more"
        for member in claim.status.members:
            if member.lease_ref is None:
                continue
            name = member.lease_ref.name
            try:
                found = await self._objects.get(Lease, claim.metadata.namespace, name)
            except NotFound:
                return "MemberLost", f"lease {name} was deleted"
            if found.status.ended:
                ready = conditions.get(found.status.conditions, "Ready")
                if ready is not None and ready.reason == "Expired":
                    return "Expired", "the claim reached its end time"
                return "MemberLost", f"lease {name} ended: {ready.message if ready else ''}"
        if claim.status.members:
            return "", ""
        return "MemberLost", "a lease ended before all had their exporters"

    async def _end(self, claim: DeviceClaim, reason: str, message: str, now: datetime) -> None:
        """Release all leases, then say that the claim is over."""
        for error in await together(self._release(lease) for lease in self._leases(claim)):
            if error is not None and not isinstance(error, NotFound):
                raise error
        await self._holdings.give_up(claim)
        await self._say(
            claim, lambda c: claim_lifecycle.ended(c, reason=reason, message=message, now=now)
        )

    async def _release(self, lease: Lease) -> None:
        await change(self._objects, self._views.leases, lease, claim_lifecycle.released)

    async def _forget(self, claim: DeviceClaim, now: datetime) -> None:
        if self._kept_until(claim) <= now:
            await self._objects.delete(claim)

    def _kept_until(self, claim: DeviceClaim) -> datetime:
        assert claim.metadata.creation_timestamp is not None
        since = claim.status.end_time or claim.metadata.creation_timestamp
        return times.shifted(since, self._retention)

    # What waiting claims get

    async def _perform(self, decision: Serve | Hold, now: datetime) -> None:
        claim = decision.claim
        every = self._leases(claim)
        kept = member_replacement.kept_leases(every) if claim.status.members else ()
        found = tuple(lease for lease in every if lease not in kept)
        if claim_lifecycle.being_assigned(found, self._holders(found)):
            # They got their exporters after the decision; their change starts another pass.
            return
        if kept and await self._cannot_be_replaced(claim, now):
            return
        match decision:
            case Serve():
                step = await self._serve(decision, found, kept, now)
            case Hold(reason=reason, message=message, booked=booked):
                step = None if booked else claim_lifecycle.next_step(found, ())
                await self._wait(claim, reason, message, now, decided=booked or bool(kept))
            case _:
                assert_never(decision)
        match step:
            case Create(leases=leases) if any(key_of(x) in self._withdrawn for x in leases):
                pass
            case Create(leases=leases):
                for error in await together(self._create(lease) for lease in leases):
                    if error is not None:
                        raise error
            case Withdraw(leases=leases):
                self._withdrawn |= dict.fromkeys(map(key_of, leases), now)
                await self._withdraw(leases, kept=len(kept))
            case None:
                pass
        if isinstance(decision, Hold) and not decision.booked and not kept:
            await self._holdings.give_up(claim)

    async def _serve(
        self,
        decision: Serve,
        found: tuple[Lease, ...],
        kept: tuple[Lease, ...],
        now: datetime,
    ) -> Create | Withdraw | None:
        """Record the decision, take the devices of pools, and return what is to do about leases."""
        claim, answer = decision.claim, decision.answer
        wanted = claim_lifecycle.leases_for(claim, answer, kept)
        pools = self._pools(claim.metadata.namespace, answer.devices)
        step = claim_lifecycle.next_step(found, claim_lifecycle.reusing(found, wanted, pools))
        takes = not kept and not isinstance(step, Withdraw)
        if takes and not await self._holdings.take(claim, answer, now):
            return None
        await change_status(
            self._objects,
            self._claims,
            claim,
            lambda c: claim_lifecycle.decided(c, decision.allocation),
        )
        told = claim_lifecycle.wait_of(found) if step is None else None
        if told is not None:
            reason = "Provisioning" if claim_lifecycle.starting(found) else told.reason
            await self._wait(claim, reason, told.message, now, decided=True)
        return step

    async def _withdraw(self, leases: tuple[Lease, ...], *, kept: int) -> None:
        """Delete waiting leases, the first of them first.

        If the view shows only a part of them, the API itself is read: the others may exist.
        """
        if len(leases) + kept < group_size(leases[0]):
            uid = claim_uid(leases[0])
            every = (await self._objects.list(Lease)).items
            found = {x.metadata.name for x in every if claim_uid(x) == uid and not x.status.ended}
            if len(found) > len(leases) + kept:
                raise Conflict("the view of the leases of a claim is behind")
        for lease in leases:
            await self._objects.delete(lease)

    def _pools(self, namespace: str, devices: Iterable[str]) -> dict[str, str]:
        """The ExporterSets of those devices that are members of one."""
        found = (self._views.exporters.get(namespace, name) for name in devices)
        labels = ((e.metadata.name, e.metadata.labels.get(SET_NAME)) for e in found if e)
        return {name: pool for name, pool in labels if pool}

    async def _cannot_be_replaced(self, claim: DeviceClaim, now: datetime) -> bool:
        """Ends a claim that only reached its end time; also true if the view was only behind."""
        reason, message = await self._loss(claim)
        if reason == "Expired":
            await self._end(claim, reason, message, now)
        return reason in ("", "Expired")

    async def _wait(
        self, claim: DeviceClaim, reason: str, message: str, now: datetime, *, decided: bool
    ) -> None:
        if claim.status.members:
            lost = member_replacement.lost_members(claim, self._leases(claim))
            names = ", ".join(member.device for member in lost) or "a member"
            reason, message = "Replacing", f"{names} is being replaced: {message}"
        await self._say(
            claim,
            lambda c: claim_lifecycle.waiting(
                c, reason=reason, message=message, now=now, decided=decided
            ),
        )

    async def _create(self, lease: Lease) -> None:
        try:
            self._views.leases.observe(await self._objects.create(lease))
        except AlreadyExists:
            known = await self._objects.get(Lease, *key_of(lease))
            if claim_uid(known) == claim_uid(lease) and known.status.ended:
                # It was ended before it had its exporter; the next pass makes it again.
                await self._objects.delete(known)
            raise

    async def _say(
        self, claim: DeviceClaim, edit: Callable[[DeviceClaim], DeviceClaimStatus]
    ) -> None:
        """Write the status if it differs, and emit an event if its reason does."""
        before = claim_lifecycle.says(claim)
        written = await change_status(self._objects, self._claims, claim, edit)
        said = conditions.get(written.status.conditions, "Allocated")
        if said is not None and said.reason != before:
            self._events.emit(written, reason=f"Claim{said.reason}", message=said.message)
