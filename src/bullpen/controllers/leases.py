"""Keeps leases and exporters together: assigns, ends, mends, forgets.

One pass looks at a whole namespace, because who gets what can only be decided over
everybody. Passes are started by events and by the clock, never by polling.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from bullpen.api.exporter import Exporter, ExporterStatus
from bullpen.api.fields import Kind
from bullpen.api.lease import Lease, LeaseStatus
from bullpen.api.meta import LocalObjectReference
from bullpen.api.objects import Objects
from bullpen.controllers.views import Views
from bullpen.core import access, leasing, presence, scheduling
from bullpen.core.access import Approval, Policies
from bullpen.core.holding import Mend, mend_exporter, mend_lease
from bullpen.core.leasing import ENDED_LABEL, Phase
from bullpen.core.scheduling import Assign, Evict, Lab, Offer, Refuse, Request, Wait
from bullpen.errors import Conflict, NotFound
from bullpen.kit.clock import Clock
from bullpen.runtime.events import Events
from bullpen.runtime.informer import Key, key_of, revision_of
from bullpen.runtime.loop import Outcome

log = logging.getLogger("bullpen.leases")

WRITES_AT_ONCE_MAX = 64


class LeaseReconciler:
    """Reconciles one namespace at a time."""

    name = "leases"

    def __init__(
        self,
        objects: Objects,
        views: Views,
        *,
        clock: Clock,
        events: Events,
        connected: Callable[[Key], bool],
        retention: timedelta,
    ) -> None:
        self._objects = objects
        self._views = views
        self._clock = clock
        self._events = events
        self._connected = connected
        self._retention = retention
        self._open: dict[str, dict[str, Lease]] = defaultdict(dict)
        self._over: dict[str, dict[str, Lease]] = defaultdict(dict)
        self._arrived: dict[tuple[str, str], int] = {}
        views.leases.listen(self._sort)

    def _sort(self, old: Lease | None, new: Lease | None) -> None:
        """Keep leases that matter apart from those that are only kept to be read."""
        lease = new or old
        assert lease is not None
        namespace, name = lease.metadata.namespace, lease.metadata.name
        self._open[namespace].pop(name, None)
        self._over[namespace].pop(name, None)
        if old is None and self._views.leases.live:
            self._arrived[namespace, name] = revision_of(lease)
        if new is None or new.status.ended:
            self._arrived.pop((namespace, name), None)
        if new is not None:
            (self._over if new.status.ended else self._open)[namespace][name] = new

    async def reconcile(self, namespace: str) -> Outcome:
        now = self._clock.now()
        await self._end_due(namespace, now)
        await self._mend(namespace, now)
        await self._schedule(namespace, now)
        await self._forget(namespace, now)
        return Outcome(wake_at=self._next(namespace))

    async def _end_due(self, namespace: str, now: datetime) -> None:
        due = [
            (lease, reason)
            for lease in self._open[namespace].values()
            if (reason := leasing.due_to_end(lease, now=now))
        ]
        await _all(self._end(lease, reason, now) for lease, reason in due)

    async def _end(self, lease: Lease, reason: str, now: datetime) -> None:
        """End the lease, then free its exporter; in that order, so that none is ever doubled."""
        message = leasing.end_message(reason)
        status = leasing.ended(lease, reason=reason, message=message, now=now)
        lease = await self._put_lease(lease, status)
        self._events.emit(lease, reason=f"Lease{reason}", message=message)
        held = lease.status.exporter_ref
        exporter = held and self._views.exporters.get(lease.metadata.namespace, held.name)
        if exporter and _holder(exporter) == lease.metadata.name:
            await self._free(exporter)
        await self._label(lease)

    async def _label(self, lease: Lease) -> None:
        labels = {**lease.metadata.labels, ENDED_LABEL: "true"}
        value = replace(lease, metadata=replace(lease.metadata, labels=labels))
        self._views.leases.observe(await self._objects.update(value))

    async def _mend(self, namespace: str, now: datetime) -> None:
        exporters, leases = self._views.exporters, self._views.leases
        for exporter in list(exporters.all(namespace)):
            if not (name := _holder(exporter)):
                continue
            lease = leases.get(namespace, name)
            match mend_exporter(exporter, lease):
                case Mend.FREE:
                    await self._free(exporter)
                case Mend.FINISH:
                    assert lease is not None
                    await self._finish(lease, exporter, self._approval(lease, exporter), now)
                case _:
                    pass
        for lease in [v for v in self._open[namespace].values() if v.status.exporter_ref]:
            assert lease.status.exporter_ref is not None
            await self._mend_lease(lease, exporters.get(namespace, lease.status.exporter_ref.name))

    async def _mend_lease(self, lease: Lease, exporter: Exporter | None) -> None:
        now = self._clock.now()
        match mend_lease(lease, exporter):
            case Mend.RETAKE:
                assert exporter is not None
                await self._put_exporter(exporter, _taken(exporter, lease, lease.status.epoch))
            case Mend.END:
                status = leasing.ended(
                    lease, reason="ExporterRemoved", message="its exporter was removed", now=now
                )
                await self._label(await self._put_lease(lease, status))
            case _:
                pass
        if lease.status.ended and ENDED_LABEL not in lease.metadata.labels:
            await self._label(lease)

    async def _schedule(self, namespace: str, now: datetime) -> None:
        waiting = {
            lease.metadata.name: lease
            for lease in self._open[namespace].values()
            if leasing.phase(lease, now=now) is Phase.WAITING
        }
        if not waiting:
            return
        policies = access.policies(self._views.policies.all(namespace))
        lab = Lab(
            offers=tuple(self._offer(e) for e in self._views.exporters.all(namespace)),
            requests=tuple(self._request(lease) for lease in waiting.values()),
            policies=policies,
        )
        decisions = scheduling.schedule(lab)
        await _all(self._perform(decision, waiting, now) for decision in decisions)

    def _offer(self, exporter: Exporter) -> Offer:
        holder = _holder(exporter)
        held = self._views.leases.get(exporter.metadata.namespace, holder) if holder else None
        return Offer(
            name=exporter.metadata.name,
            labels=exporter.metadata.labels,
            enabled=exporter.spec.enabled,
            # The condition may be left over from before a restart; the connection is not.
            online=self._connected(key_of(exporter)) and presence.registered(exporter),
            idle=presence.idle(exporter),
            holder=holder,
            holder_spot=held is not None and held.status.spot_access,
        )

    def _request(self, lease: Lease) -> Request:
        spec, meta = lease.spec, lease.metadata
        client = self._views.clients.get(meta.namespace, spec.client_ref.name)
        assert meta.creation_timestamp is not None
        return Request(
            name=meta.name,
            client=spec.client_ref.name,
            client_labels=client.metadata.labels if client else None,
            selector=spec.selector.selector(),
            since=leasing.begins_at(spec) or meta.creation_timestamp,
            sequence=self._arrived.get((meta.namespace, meta.name), 0),
            exporter=spec.exporter_ref.name if spec.exporter_ref else "",
            allow_disabled=spec.allow_disabled,
            duration=leasing.length(spec),
        )

    async def _perform(
        self, decision: scheduling.Decision, waiting: dict[str, Lease], now: datetime
    ) -> None:
        match decision:
            case Assign(lease=name, exporter=target, approval=approval):
                await self._assign(waiting[name], target, approval, now)
            case Evict(lease=name, by=by):
                await self._evict(waiting[by], name, now)
            case Wait(lease=name, reason=reason, message=message):
                lease = waiting[name]
                status = leasing.waiting(lease, reason=reason, message=message, now=now)
                if status != lease.status:
                    await self._put_lease(lease, status)
            case Refuse(lease=name, type=type, reason=reason, message=message):
                lease = waiting[name]
                status = leasing.refused(lease, type=type, reason=reason, message=message, now=now)
                lease = await self._put_lease(lease, status)
                self._events.emit(lease, reason=reason, message=message, warning=True)
                await self._label(lease)
            case _:
                assert_never(decision)

    async def _assign(self, lease: Lease, target: str, approval: Approval, now: datetime) -> None:
        exporter = self._views.exporters.get(lease.metadata.namespace, target)
        assert exporter is not None
        epoch = exporter.status.lease_epoch + 1
        exporter = await self._put_exporter(exporter, _taken(exporter, lease, epoch))
        await self._finish(lease, exporter, approval, now)

    async def _finish(
        self, lease: Lease, exporter: Exporter, approval: Approval, now: datetime
    ) -> None:
        status = leasing.assigned(
            lease,
            exporter=exporter.metadata.name,
            priority=approval.priority,
            spot=approval.spot,
            epoch=exporter.status.lease_epoch,
            now=now,
        )
        lease = await self._put_lease(lease, status)
        self._events.emit(
            lease, reason="LeaseAssigned", message=f"got exporter {exporter.metadata.name}"
        )

    async def _evict(self, by: Lease, name: str, now: datetime) -> None:
        victim = self._open[by.metadata.namespace].get(name)
        if victim is not None:
            await self._end(victim, "Evicted", now)

    def _approval(self, lease: Lease, exporter: Exporter) -> Approval:
        client = self._views.clients.get(lease.metadata.namespace, lease.spec.client_ref.name)
        found: Policies = access.policies(self._views.policies.all(lease.metadata.namespace))
        approval = access.approve(
            found,
            client=client.metadata.labels if client else {},
            exporter=exporter.metadata.labels,
            duration=leasing.length(lease.spec),
        )
        # The exporter was taken under a right that has gone since; the taking stands.
        return approval or Approval()

    async def _forget(self, namespace: str, now: datetime) -> None:
        """Delete leases that ended long enough ago."""
        old = [v for v in self._over[namespace].values() if self._kept_until(v) <= now]
        await _all(self._objects.delete(lease) for lease in old)

    def _kept_until(self, lease: Lease) -> datetime:
        assert lease.metadata.creation_timestamp is not None
        return (lease.status.end_time or lease.metadata.creation_timestamp) + self._retention

    def _next(self, namespace: str) -> datetime | None:
        """The next moment at which time alone changes something here."""
        moments = [self._kept_until(lease) for lease in self._over[namespace].values()]
        for lease in self._open[namespace].values():
            begin, end = leasing.begins_at(lease.spec), leasing.expires_at(lease)
            if begin is not None and lease.status.exporter_ref is None:
                moments.append(begin)
            if end is not None:
                moments.append(end)
        now = self._clock.now()
        return min((moment for moment in moments if moment > now), default=None)

    async def _free(self, exporter: Exporter) -> None:
        await self._put_exporter(exporter, replace(exporter.status, lease_ref=None))

    async def _put_exporter(self, exporter: Exporter, status: ExporterStatus) -> Exporter:
        written = await self._objects.update_status(replace(exporter, status=status))
        self._views.exporters.observe(written)
        return written

    async def _put_lease(self, lease: Lease, status: LeaseStatus) -> Lease:
        written = await self._objects.update_status(replace(lease, status=status))
        self._views.leases.observe(written)
        return written


def _holder(exporter: Exporter) -> str:
    ref = exporter.status.lease_ref
    return ref.name if ref else ""


def _taken(exporter: Exporter, lease: Lease, epoch: int) -> ExporterStatus:
    reference = LocalObjectReference(name=lease.metadata.name)
    return replace(exporter.status, lease_ref=reference, lease_epoch=epoch)


async def _all(acts: Iterable[Awaitable[None]]) -> None:
    """Carry out many acts together, so that they share commits.

    What moved on meanwhile is left to the next pass, which the move itself starts;
    one conflict does not keep the others from happening.
    """
    slots = asyncio.Semaphore(WRITES_AT_ONCE_MAX)
    lost: list[Conflict | NotFound] = []

    async def one(act: Awaitable[None]) -> None:
        async with slots:
            try:
                await act
            except (Conflict, NotFound) as error:
                lost.append(error)

    async with asyncio.TaskGroup() as tasks:
        for act in acts:
            tasks.create_task(one(act))
    conflicts = [error for error in lost if isinstance(error, Conflict)]
    if conflicts:
        raise conflicts[0]


def watch_namespaces(views: Views, add: Callable[[str], None]) -> None:
    """Start a pass whenever something a decision looks at changes."""

    def leases(old: Lease | None, new: Lease | None) -> None:
        if _matters(old, new):
            others(old, new)

    def others(old: Kind | None, new: Kind | None) -> None:
        value = new or old
        assert value is not None
        add(key_of(value)[0])

    views.leases.listen(leases)
    views.exporters.listen(others)
    views.clients.listen(others)
    views.policies.listen(others)


def _matters(old: Lease | None, new: Lease | None) -> bool:
    """Conditions are our own words; hearing them again is no news."""
    if old is None or new is None:
        return True
    quiet = replace(new.status, conditions=()) == replace(old.status, conditions=())
    return not quiet or old.spec != new.spec
