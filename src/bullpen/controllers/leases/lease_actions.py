"""Acts on leases: performs plans of ordered writes and emits the events that report them.

Decides nothing: plans come from ``core.leases.assignment``, statuses from
``core.leases.lifecycle``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease, LeaseStatus
from bullpen.api.objects import Objects
from bullpen.controllers.labs import Labs
from bullpen.controllers.object_edit import change
from bullpen.controllers.views import Views
from bullpen.core import conditions
from bullpen.core.lab_index import holder_of
from bullpen.core.leases import assignment, lifecycle
from bullpen.core.leases.assignment import Mend, Part, Partner, Plan, Write, mend_exporter
from bullpen.core.leases.lease_group import called_off, claim_uid, first_to_write
from bullpen.core.leases.requests import Grant, Refuse, Wait
from bullpen.errors import Conflict, LabError, NotFound
from bullpen.runtime.events import Events

_LOST = frozenset({"ExporterRemoved", "ExporterTaken"})
"""End reasons of leases whose exporter is no longer theirs."""


class LeaseActions:
    def __init__(self, objects: Objects, views: Views, labs: Labs, events: Events) -> None:
        self._objects = objects
        self._views = views
        self._labs = labs
        self._events = events

    def lease_of(self, exporter: Exporter) -> Lease | None:
        """The newest known state of the lease that an exporter's leaseRef names."""
        return self._labs.leases.get(exporter.metadata.namespace, holder_of(exporter))

    def exporter_of(self, lease: Lease) -> Exporter | None:
        """The exporter that a lease's status names."""
        held = lease.status.exporter_ref
        return self._views.exporters.get(lease.metadata.namespace, held.name) if held else None

    def partners(self, lease: Lease | None) -> tuple[Partner, ...]:
        """The leases that are assigned together with a lease, and the exporters they took."""
        if lease is None:
            return ()
        namespace = lease.metadata.namespace
        return tuple(
            Partner(other, self._taken_by(other) if other else None)
            for other in self._labs.of(namespace).groups.partners(lease)
        )

    def _taken_by(self, lease: Lease) -> Exporter | None:
        """The exporter whose leaseRef names the lease."""
        namespace = lease.metadata.namespace
        taken = self._labs.of(namespace).taken_by(lease.metadata.name)
        return self._views.exporters.get(namespace, taken)

    async def assign(self, leases: Sequence[Lease], grants: Sequence[Grant], now: datetime) -> None:
        """Give every lease its exporter, or none of them any."""
        if len(leases) != len(grants):
            raise Conflict("the leases of a claim changed in the meantime")
        parts = []
        for lease, grant in zip(leases, grants, strict=True):
            exporter = self._views.exporters.get(lease.metadata.namespace, grant.exporter)
            if exporter is None:
                raise _went("exporter", grant.exporter)
            parts.append(Part(lease=lease, exporter=exporter, approval=grant.approval))
        self._report_assigned(await self.perform(assignment.assign(parts, now=now)))

    async def wait(self, lease: Lease, decision: Wait | Refuse, now: datetime) -> None:
        await self._put_lease(
            lease,
            lifecycle.waiting(lease, reason=decision.reason, message=decision.message, now=now),
        )

    async def refuse(self, lease: Lease, decision: Refuse, now: datetime) -> None:
        status = lifecycle.refused(
            lease,
            type=decision.type,
            reason=decision.reason,
            message=decision.message,
            now=now,
        )
        lease = await self._put_lease(lease, status)
        self._events.emit(lease, reason=decision.reason, message=decision.message, warning=True)

    async def limit(self, lease: Lease, status: LeaseStatus) -> None:
        """Write the limited duration of a lease."""
        written = await self._put_lease(lease, status)
        found = conditions.get(written.status.conditions, "Limited")
        if found is not None and found != conditions.get(lease.status.conditions, "Limited"):
            self._events.emit(written, reason=found.reason, message=found.message)

    async def end(self, lease: Lease, reason: str, now: datetime) -> None:
        """End the lease and free its exporter."""
        if await self._mistaken(lease, reason):
            return
        plan = assignment.end(lease, self.exporter_of(lease), reason=reason, now=now)
        lease = _only_lease(await self.perform(plan))
        message = lifecycle.end_message(reason)
        self._events.emit(lease, reason=f"Lease{reason}", message=message)

    async def _mistaken(self, lease: Lease, reason: str) -> bool:
        """Whether a lease only seems to have lost what it needs, because a view is stale.

        Ending a lease cannot be undone, so the API itself is read first.
        """
        namespace = lease.metadata.namespace
        try:
            if reason == "ClientRemoved":
                name = lease.spec.client_ref.name
                self._views.clients.observe(await self._objects.get(Client, namespace, name))
                return True
            if reason in _LOST and lease.status.exporter_ref is not None:
                name = lease.status.exporter_ref.name
                found = await self._objects.get(Exporter, namespace, name)
                self._views.exporters.observe(found)
                return found.status.lease_uid == lease.metadata.uid
        except NotFound:
            return False
        return False

    async def label(self, lease: Lease) -> None:
        """Add the label by which lists and watches leave out ended leases."""
        await change(self._objects, self._views.leases, lease, lifecycle.labelled_ended)

    async def repair_exporter(self, mend: Mend, exporter: Exporter, now: datetime) -> None:
        if mend is Mend.FREE:
            lease = await self._newest_of(exporter.metadata.namespace, holder_of(exporter))
            if mend_exporter(exporter, lease, self.partners(lease)) is mend:
                await self._call_off(lease)
                await self.perform(assignment.free(exporter))
        elif mend is Mend.FINISH:
            lease = self.lease_of(exporter)
            if lease is None:
                raise _went("lease", holder_of(exporter))
            if first_to_write(self._group(lease)) not in (None, lease):
                # Whether the assignment counts is decided by the first lease alone.
                return
            approval = self._labs.approval(lease, exporter, now=now)
            plan = assignment.finish(lease, exporter, approval, now=now)
            self._report_assigned(await self.perform(plan))

    async def _call_off(self, lease: Lease | None) -> None:
        """Make sure that no process completes the assignment of a claim that is being undone.

        Another controller may be at it. It writes the first lease first, so a change of that lease
        refuses its write; if it was quicker, ours is refused. Raises ``Conflict``.
        """
        if lease is None or not claim_uid(lease) or lease.status.ended:
            return
        first = first_to_write(self._group(lease))
        if first is not None:
            self._views.leases.observe(await self._objects.update(called_off(first)))

    def _group(self, lease: Lease) -> tuple[Lease, ...]:
        """The open leases of the claim of a lease; none if it has no claim."""
        claim = claim_uid(lease)
        return self._labs.of(lease.metadata.namespace).groups.of(claim) if claim else ()

    async def repair_lease(self, mend: Mend, lease: Lease, now: datetime) -> None:
        if mend is Mend.RETAKE:
            exporter = self.exporter_of(lease)
            if exporter is None:
                raise _went("the exporter of lease", lease.metadata.name)
            newest = await self._newest_of(lease.metadata.namespace, lease.metadata.name)
            if newest == lease:
                await self.perform(assignment.retake(lease, exporter))
        else:
            removed = mend is Mend.END_REMOVED
            await self.end(lease, "ExporterRemoved" if removed else "ExporterTaken", now)

    async def _newest_of(self, namespace: str, name: str) -> Lease | None:
        """A lease as the API has it; the view is updated with it.

        The view of exporters may be newer than the view of leases: then a new lease seems to be
        deleted, and an ended lease seems to have lost its exporter.
        """
        try:
            found = await self._objects.get(Lease, namespace, name)
        except NotFound:
            return None
        found = await change(
            self._objects, self._views.leases, found, lifecycle.without_ended_label
        )
        self._views.leases.observe(found)
        return self._labs.leases.after(found)

    async def hand_over(self, lease: Lease) -> None:
        """Transfer the lease to the client its spec names, and cut off the previous client."""
        exporter = self.exporter_of(lease)
        if exporter is None or exporter.status.lease_uid != lease.metadata.uid:
            raise _went("the exporter of lease", lease.metadata.name)
        before, longest = lifecycle.holder(lease), self._labs.maximum(lease, exporter)
        written = await self.perform(assignment.hand_over(lease, exporter, maximum=longest))
        lease = _only_lease(written)
        text = f"{before} transferred the lease to {lifecycle.holder(lease)}"
        self._events.emit(lease, reason="LeaseTransferred", message=text)

    def _report_assigned(self, written: Sequence[Write]) -> None:
        for lease in written:
            if isinstance(lease, Lease) and lease.status.exporter_ref is not None:
                text = f"assigned exporter {lease.status.exporter_ref.name}"
                self._events.emit(lease, reason="LeaseAssigned", message=text)

    async def _put_lease(self, lease: Lease, status: LeaseStatus) -> Lease:
        return _only_lease(await self.perform(Plan((replace(lease, status=status),))))

    async def perform(self, plan: Plan) -> list[Write]:
        """Make the writes of a plan in order; returns the objects as they were written.

        The last two writes share a commit. If a write is refused before the plan is committed, the
        writes before it are undone. If that fails too, or the process dies, the next pass repairs.
        """
        written: list[Write] = []
        try:
            for value in plan.writes[:-2]:
                written.append(await self._objects.update_status(value))
                self._observe(written[-1])
            if len(plan.writes) == 1:
                written.append(await self._objects.update_status(plan.writes[0]))
            else:
                written += await self._objects.update_statuses(*plan.writes[-2:])
        except LabError:
            undoing = assignment.undo(plan, written)
            if undoing.writes:
                await self.perform(undoing)
            raise
        for value in written[-2:]:
            self._observe(value)
        return written

    def _observe(self, value: Write) -> None:
        if isinstance(value, Lease):
            self._views.leases.observe(value)
        else:
            self._views.exporters.observe(value)


def _only_lease(written: Sequence[Write]) -> Lease:
    (found,) = (value for value in written if isinstance(value, Lease))
    return found


def _went(what: str, name: str) -> Conflict:
    """An object the pass decided on no longer exists; the next pass decides again."""
    return Conflict(f"{what} {name} was deleted in the meantime")
