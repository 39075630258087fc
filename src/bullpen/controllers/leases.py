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
from bullpen.controllers.observing import approval, holder_of, observe
from bullpen.controllers.shelf import Shelf
from bullpen.controllers.views import Views
from bullpen.core import leasing, scheduling
from bullpen.core.access import Approval
from bullpen.core.holding import Mend, mend_exporter, mend_lease
from bullpen.core.leasing import ENDED_LABEL, Phase
from bullpen.core.scheduling import Assign, Evict, Refuse, Supply, Wait
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
        supplies: Callable[[str], tuple[Supply, ...]],
        retention: timedelta,
    ) -> None:
        self._objects = objects
        self._views = views
        self._clock = clock
        self._events = events
        self._connected = connected
        self._supplies = supplies
        self._open: dict[str, dict[str, Lease]] = defaultdict(dict)
        self._over = Shelf(retention)
        self._arrived: dict[tuple[str, str], int] = {}
        views.leases.listen(self._sort)

    def _sort(self, old: Lease | None, new: Lease | None) -> None:
        """Keep leases that matter apart from those that are only kept to be read."""
        lease = new or old
        assert lease is not None
        namespace, name = lease.metadata.namespace, lease.metadata.name
        self._open[namespace].pop(name, None)
        if new is None:
            self._over.remove(lease)
        if old is None and self._views.leases.live:
            self._arrived[namespace, name] = revision_of(lease)
        if new is None or new.status.ended:
            self._arrived.pop((namespace, name), None)
        if new is not None and new.status.ended:
            self._over.put(new)
        elif new is not None:
            self._open[namespace][name] = new

    async def reconcile(self, namespace: str) -> Outcome:
        now = self._clock.now()
        await self._end_due(namespace, now)
        await self._mend(namespace, now)
        await self._hand_over(namespace)
        await self._schedule(namespace, now)
        await self._forget(namespace, now)
        return Outcome(wake_at=self._next(namespace))

    async def _end_due(self, namespace: str, now: datetime) -> None:
        due = [
            (lease, reason)
            for lease in self._open[namespace].values()
            if (reason := leasing.due_to_end(lease, now=now) or self._orphaned(lease))
        ]
        await _all(self._end(lease, reason, now) for lease, reason in due)

    def _orphaned(self, lease: Lease) -> str | None:
        """The reason why a lease that has its exporter loses it with its client."""
        if lease.status.exporter_ref is None:
            return None
        client = self._views.clients.get(lease.metadata.namespace, lease.spec.client_ref.name)
        return "ClientRemoved" if client is None else None

    async def _end(self, lease: Lease, reason: str, now: datetime) -> None:
        """End the lease, then free its exporter; in that order, so that none is ever doubled."""
        message = leasing.end_message(reason)
        status = leasing.ended(lease, reason=reason, message=message, now=now)
        lease = await self._put_lease(lease, status)
        self._events.emit(lease, reason=f"Lease{reason}", message=message)
        exporter = self._exporter_of(lease)
        if exporter and exporter.status.lease_uid == lease.metadata.uid:
            await self._free(exporter)
        await self._label(lease)

    async def _label(self, lease: Lease) -> None:
        labels = {**lease.metadata.labels, ENDED_LABEL: "true"}
        value = replace(lease, metadata=replace(lease.metadata, labels=labels))
        self._views.leases.observe(await self._objects.update(value))

    async def _mend(self, namespace: str, now: datetime) -> None:
        torn = [
            (mend, exporter)
            for exporter in self._views.exporters.all(namespace)
            if (mend := mend_exporter(exporter, self._lease_of(exporter))) is not Mend.NOTHING
        ]
        await _all(self._mend_exporter(mend, exporter, now) for mend, exporter in torn)
        forgotten = [
            (mend, lease)
            for lease in self._open[namespace].values()
            if lease.status.exporter_ref is not None
            and (mend := mend_lease(lease, self._exporter_of(lease))) is not Mend.NOTHING
        ]
        await _all(self._mend_lease(mend, lease, now) for mend, lease in forgotten)
        await _all(self._label(lease) for lease in self._over.unlabelled(namespace))

    async def _mend_exporter(self, mend: Mend, exporter: Exporter, now: datetime) -> None:
        if mend is Mend.FREE:
            await self._free(exporter)
        elif mend is Mend.FINISH:
            lease = self._lease_of(exporter)
            assert lease is not None
            await self._finish(lease, exporter, approval(self._views, lease, exporter), now)

    async def _mend_lease(self, mend: Mend, lease: Lease, now: datetime) -> None:
        if mend is Mend.RETAKE:
            exporter = self._exporter_of(lease)
            assert exporter is not None
            await self._put_exporter(exporter, _taken(exporter, lease, lease.status.epoch))
        else:
            removed = mend is Mend.END_REMOVED
            await self._end(lease, "ExporterRemoved" if removed else "ExporterTaken", now)

    def _lease_of(self, exporter: Exporter) -> Lease | None:
        return self._views.leases.get(exporter.metadata.namespace, holder_of(exporter))

    def _exporter_of(self, lease: Lease) -> Exporter | None:
        held = lease.status.exporter_ref
        return self._views.exporters.get(lease.metadata.namespace, held.name) if held else None

    async def _hand_over(self, namespace: str) -> None:
        """Give leases to the clients they were transferred to, and shut out the ones before."""
        moving = [
            lease
            for lease in self._open[namespace].values()
            if lease.status.exporter_ref is not None and leasing.handing_over(lease)
        ]
        await _all(self._give(lease) for lease in moving)

    async def _give(self, lease: Lease) -> None:
        """Count up on the exporter first: a crash in between costs a number, never a fence."""
        exporter = self._exporter_of(lease)
        assert exporter is not None, "a lease without its exporter was ended before"
        epoch = exporter.status.lease_epoch + 1
        await self._put_exporter(exporter, replace(exporter.status, lease_epoch=epoch))
        before = leasing.holder(lease)
        lease = await self._put_lease(lease, leasing.handed_over(lease, epoch=epoch))
        text = f"{before} handed the lease over to {leasing.holder(lease)}"
        self._events.emit(lease, reason="LeaseTransferred", message=text)

    async def _schedule(self, namespace: str, now: datetime) -> None:
        waiting = {
            lease.metadata.name: lease
            for lease in self._open[namespace].values()
            if leasing.phase(lease, now=now) is Phase.WAITING
        }
        if not waiting:
            return
        lab = observe(
            self._views,
            namespace,
            waiting,
            connected=self._connected,
            arrived=self._arrived,
            supplies=self._supplies(namespace),
        )
        await _all(self._perform(decision, waiting, now) for decision in scheduling.schedule(lab))

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

    async def _forget(self, namespace: str, now: datetime) -> None:
        """Delete leases that ended long enough ago."""
        await _all(self._objects.delete(lease) for lease in self._over.due(namespace, now))

    def _next(self, namespace: str) -> datetime | None:
        """The next moment at which time alone changes something here."""
        moments = [moment for moment in (self._over.next_due(namespace),) if moment is not None]
        for lease in self._open[namespace].values():
            begin, end = leasing.begins_at(lease.spec), leasing.expires_at(lease)
            if begin is not None and lease.status.exporter_ref is None:
                moments.append(begin)
            if end is not None:
                moments.append(end)
        now = self._clock.now()
        return min((moment for moment in moments if moment > now), default=None)

    async def _free(self, exporter: Exporter) -> None:
        await self._put_exporter(exporter, replace(exporter.status, lease_ref=None, lease_uid=""))

    async def _put_exporter(self, exporter: Exporter, status: ExporterStatus) -> Exporter:
        written = await self._objects.update_status(replace(exporter, status=status))
        self._views.exporters.observe(written)
        return written

    async def _put_lease(self, lease: Lease, status: LeaseStatus) -> Lease:
        written = await self._objects.update_status(replace(lease, status=status))
        self._views.leases.observe(written)
        return written


def _taken(exporter: Exporter, lease: Lease, epoch: int) -> ExporterStatus:
    reference = LocalObjectReference(name=lease.metadata.name)
    uid = lease.metadata.uid
    return replace(exporter.status, lease_ref=reference, lease_uid=uid, lease_epoch=epoch)


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
    """Conditions and sessions are our own words; hearing them again is no news."""
    if old is None or new is None:
        return True
    return old.spec != new.spec or _deciding(old.status) != _deciding(new.status)


def _deciding(status: LeaseStatus) -> LeaseStatus:
    return replace(status, conditions=(), sessions=())
