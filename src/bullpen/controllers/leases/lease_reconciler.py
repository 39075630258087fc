"""Keeps leases and exporters consistent: assigns, ends, repairs and deletes leases.

One pass decides for a whole namespace, because assignments can only be decided over all
requests, but it looks only at what changed. Passes are started by events and by time, never
by polling.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar, assert_never

from bullpen.api.client import Client
from bullpen.api.exporter import Exporter
from bullpen.api.fields import Kind
from bullpen.api.lease import Lease, LeaseStatus
from bullpen.api.meta import ConditionStatus, LocalObjectReference
from bullpen.api.objects import Objects
from bullpen.controllers.batch import together
from bullpen.controllers.labs import Labs
from bullpen.controllers.views import Views
from bullpen.core import conditions
from bullpen.core.lab_index import LabIndex, News, holder_of
from bullpen.core.leases import lifecycle, scheduler
from bullpen.core.leases.access import Approval
from bullpen.core.leases.lifecycle import ENDED_LABEL, Phase
from bullpen.core.leases.repair import Mend, mend_exporter, mend_lease
from bullpen.core.leases.requests import (
    Assign,
    Decision,
    Evict,
    Lab,
    Refuse,
    Request,
    Supply,
    Wait,
    request_of,
)
from bullpen.errors import Conflict, NotFound
from bullpen.kit.clock import Clock
from bullpen.runtime.events import Events
from bullpen.runtime.informer import key_of
from bullpen.runtime.loop import Outcome

A = TypeVar("A", bound=Kind)
B = TypeVar("B", bound=Kind)

_LIMIT, _END, _REQUEST, _SCHEDULE, _WRITE = (
    f"leases: {step}" for step in ("limit", "end", "request", "schedule", "write")
)
"""Steps of a pass under which faults of leases and exporters are recorded."""

FAULT_RETRY = timedelta(seconds=10)
"""How long after an unexpected failure a lease or exporter is processed again."""


class LeaseReconciler:
    """Reconciles one namespace at a time."""

    name = "leases"

    def __init__(
        self,
        objects: Objects,
        views: Views,
        labs: Labs,
        *,
        clock: Clock,
        events: Events,
        supplies: Callable[[str], tuple[Supply, ...]],
    ) -> None:
        self._objects = objects
        self._views = views
        self._clock = clock
        self._events = events
        self._supplies = supplies
        self._faults = views.faults
        self._labs = labs

    async def reconcile(self, namespace: str) -> Outcome:
        now, lab = self._clock.now(), self._labs.of(namespace)
        news = lab.take(now)
        try:
            await self._limit(lab, news, now)
            await self._end_due(lab, news, now)
            await self._mend(namespace, lab, news, now)
            await self._hand_over(lab, news)
            await self._schedule(namespace, lab, news, now)
            await self._forget(lab, now)
        except BaseException:
            lab.give_back(news)
            lab.requests.everything()
            raise
        retry_at = now + FAULT_RETRY if self._give_back_faulty(namespace) else None
        moments = (lab.ended.next_due(), lab.next_moment(), retry_at)
        return Outcome(wake_at=min((m for m in moments if m is not None), default=None))

    def _give_back_faulty(self, namespace: str) -> bool:
        """Queue again the objects that could not be processed; returns whether there are any."""
        faulty = [key for key in self._faults.all() if key.namespace == namespace]
        news = News(
            leases={key.name for key in faulty if key.kind is Lease},
            exporters={key.name for key in faulty if key.kind is Exporter},
        )
        if not (news.leases or news.exporters):
            return False
        lab = self._labs.of(namespace)
        lab.give_back(news)
        lab.requests.everything()
        return True

    async def _limit(self, lab: LabIndex, news: News, now: datetime) -> None:
        """Limit leases whose spec asks for more to their maximum.

        This comes before any lease is ended: a lease that was just extended may get a new maximum.
        """
        changed: list[tuple[Lease, LeaseStatus]] = []
        for lease in lab.select(news.leases):
            with self._faults.guarding(_LIMIT, lease):
                status = self._labs.limited(lease, now=now)
                if status != lease.status:
                    changed.append((lease, status))
        await _all(self._guarded(lease, self._tell_limit(lease, to)) for lease, to in changed)

    async def _tell_limit(self, lease: Lease, status: LeaseStatus) -> None:
        written = await self._put_lease(lease, status)
        found = conditions.get(written.status.conditions, "Limited")
        if found is not None and found != conditions.get(lease.status.conditions, "Limited"):
            self._events.emit(written, reason=found.reason, message=found.message)

    async def _end_due(self, lab: LabIndex, news: News, now: datetime) -> None:
        due: list[tuple[Lease, str]] = []
        for lease in lab.select(news.leases):
            with self._faults.guarding(_END, lease):
                reason = lifecycle.due_to_end(lease, now=now) or self._orphaned(lease)
                if reason:
                    due.append((lease, reason))
        await _all(self._guarded(lease, self._end(lease, reason, now)) for lease, reason in due)

    async def _guarded(self, value: Kind, act: Awaitable[None]) -> None:
        """Run ``act``; an unexpected failure affects ``value`` alone."""
        with self._faults.guarding(_WRITE, value):
            await act

    def _orphaned(self, lease: Lease) -> str | None:
        """The reason why an active lease ends because of its client, or None."""
        if lease.status.exporter_ref is None:
            return None
        client = self._views.clients.get(lease.metadata.namespace, lease.spec.client_ref.name)
        return "ClientRemoved" if client is None else None

    async def _end(self, lease: Lease, reason: str, now: datetime) -> None:
        """End the lease, then free its exporter: this order never assigns an exporter twice."""
        if await self._mistaken(lease, reason):
            return
        message = lifecycle.end_message(reason)
        status = lifecycle.ended(lease, reason=reason, message=message, now=now)
        exporter = self._exporter_of(lease)
        if exporter and exporter.status.lease_uid == lease.metadata.uid:
            lease, _ = await self._put_both(replace(lease, status=status), _freed(exporter))
        else:
            lease = await self._put_lease(lease, status)
        self._events.emit(lease, reason=f"Lease{reason}", message=message)
        if ENDED_LABEL not in lease.metadata.labels:
            await self._label(lease)

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

    async def _label(self, lease: Lease) -> None:
        value = lifecycle.labelled_ended(lease)
        self._views.leases.observe(await self._objects.update(value))

    async def _mend(self, namespace: str, lab: LabIndex, news: News, now: datetime) -> None:
        torn = [
            (mend, exporter)
            for name in sorted(news.exporters)
            if (exporter := self._views.exporters.get(namespace, name)) is not None
            and (mend := mend_exporter(exporter, self._lease_of(exporter))) is not Mend.NOTHING
        ]
        await _all(
            self._guarded(exporter, self._mend_exporter(mend, exporter, now))
            for mend, exporter in torn
        )
        forgotten = [
            (mend, lease)
            for lease in lab.select(news.leases)
            if lease.status.exporter_ref is not None
            and (mend := mend_lease(lease, self._exporter_of(lease))) is not Mend.NOTHING
        ]
        await _all(
            self._guarded(lease, self._mend_lease(mend, lease, now)) for mend, lease in forgotten
        )
        await _all(self._guarded(lease, self._label(lease)) for lease in lab.ended.unlabelled())

    async def _mend_exporter(self, mend: Mend, exporter: Exporter, now: datetime) -> None:
        if mend is Mend.FREE:
            lease = await self._newest_of(exporter.metadata.namespace, holder_of(exporter))
            if mend_exporter(exporter, lease) is mend:
                await self._put_exporter(_freed(exporter))
        elif mend is Mend.FINISH:
            lease = self._lease_of(exporter)
            if lease is None:
                raise _went("lease", holder_of(exporter))
            right = self._labs.approval(lease, exporter, now=now)
            await self._finish(lease, exporter, right, now)

    async def _mend_lease(self, mend: Mend, lease: Lease, now: datetime) -> None:
        if mend is Mend.RETAKE:
            exporter = self._exporter_of(lease)
            if exporter is None:
                raise _went("the exporter of lease", lease.metadata.name)
            newest = await self._newest_of(lease.metadata.namespace, lease.metadata.name)
            if newest == lease:
                await self._put_exporter(_taken(exporter, lease, lease.status.epoch))
        else:
            removed = mend is Mend.END_REMOVED
            await self._end(lease, "ExporterRemoved" if removed else "ExporterTaken", now)

    async def _newest_of(self, namespace: str, name: str) -> Lease | None:
        """A lease as the API has it; the view is updated with it.

        The view of exporters may be newer than the view of leases: then a new lease seems to be
        deleted, and an ended lease seems to have lost its exporter.
        """
        try:
            found = await self._objects.get(Lease, namespace, name)
        except NotFound:
            return None
        self._views.leases.observe(found)
        return self._labs.leases.after(found)

    def _lease_of(self, exporter: Exporter) -> Lease | None:
        return self._labs.leases.get(exporter.metadata.namespace, holder_of(exporter))

    def _exporter_of(self, lease: Lease) -> Exporter | None:
        held = lease.status.exporter_ref
        return self._views.exporters.get(lease.metadata.namespace, held.name) if held else None

    async def _hand_over(self, lab: LabIndex, news: News) -> None:
        """Transfer leases to the clients their specs name, and cut off the previous clients."""
        moving = [
            lease
            for lease in lab.select(news.leases)
            if lease.status.exporter_ref is not None and lifecycle.handing_over(lease)
        ]
        await _all(self._guarded(lease, self._give(lease)) for lease in moving)

    async def _give(self, lease: Lease) -> None:
        """Increment the exporter's epoch first: a crash then costs a number, never a fence."""
        exporter = self._exporter_of(lease)
        if exporter is None or exporter.status.lease_uid != lease.metadata.uid:
            raise _went("the exporter of lease", lease.metadata.name)
        epoch = exporter.status.lease_epoch + 1
        counted = replace(exporter, status=replace(exporter.status, lease_epoch=epoch))
        before = lifecycle.holder(lease)
        longest = self._labs.maximum(lease, exporter)
        status = lifecycle.handed_over(lease, epoch=epoch, maximum=longest)
        given = replace(lease, status=status)
        _, lease = await self._put_both(counted, given)
        text = f"{before} transferred the lease to {lifecycle.holder(lease)}"
        self._events.emit(lease, reason="LeaseTransferred", message=text)

    async def _schedule(self, namespace: str, lab: LabIndex, news: News, now: datetime) -> None:
        for name in sorted(news.leases):
            self._queue(lab, name, now)
        if not len(lab.requests):
            return
        policies, supplies = self._labs.policies(namespace), self._supplies(namespace)
        requests = lab.requests
        requests.under(policies, supplies)
        whole = Lab(offers=lab.offers, requests=(), policies=policies, supplies=supplies)
        new = self._decided(whole, requests.newcomers(), lab.waiting)
        at_once = [decision for decision in new if isinstance(decision, Assign)]
        requests.served(decision.request for decision in at_once)
        await self._carry_out(at_once, lab.waiting, now)
        await self._carry_out(self._decided(whole, requests.take(), lab.waiting), lab.waiting, now)

    def _decided(
        self, lab: Lab, requests: tuple[Request, ...], waiting: Mapping[str, Lease]
    ) -> tuple[Decision, ...]:
        # A lease that this pass has just ended is still in the index.
        asking = tuple(asked for asked in requests if asked.name in waiting)
        leases = {asked.name: waiting[asked.name] for asked in asking}
        return self._decide(replace(lab, requests=asking), leases) if asking else ()

    async def _carry_out(
        self, decisions: Iterable[Decision], waiting: Mapping[str, Lease], now: datetime
    ) -> None:
        """Perform only what differs: most waiting leases already have the status they would get."""
        acts = [(decision, waiting[request_of(decision)]) for decision in decisions]
        await _all(
            self._guarded(lease, self._perform(decision, lease, now))
            for decision, lease in acts
            if not (isinstance(decision, Wait) and _told(decision, lease))
        )

    def _queue(self, lab: LabIndex, name: str, now: datetime) -> None:
        """Update the queue with one lease that changed or became due."""
        lease = lab.waiting.get(name)
        if lease is None:
            lab.requests.remove(name)
            return
        with self._faults.guarding(_REQUEST, lease):
            if lifecycle.phase(lease, now=now) is Phase.WAITING:
                lab.requests.put(self._labs.request(lease, now=now))
            else:
                lab.requests.remove(name)

    def _decide(self, lab: Lab, leases: Mapping[str, Lease]) -> tuple[Decision, ...]:
        """Decide the assignments. A request that cannot be decided does not block the others."""
        try:
            decisions = scheduler.schedule(lab)
        except Exception:
            sound = tuple(asked for asked in lab.requests if self._decidable(lab, asked, leases))
            if len(sound) == len(lab.requests):
                raise
            return scheduler.schedule(replace(lab, requests=sound))
        for asked in lab.requests if self._faults.all() else ():
            self._faults.clear(_SCHEDULE, leases[asked.name])
        return decisions

    def _decidable(self, lab: Lab, asked: Request, leases: Mapping[str, Lease]) -> bool:
        with self._faults.guarding(_SCHEDULE, leases[asked.name]):
            scheduler.schedule(replace(lab, requests=(asked,)))
            return True
        return False

    async def _perform(self, decision: Decision, lease: Lease, now: datetime) -> None:
        """Carry out a decision about a waiting lease."""
        match decision:
            case Assign(grants=(grant,)):
                await self._assign(lease, grant.exporter, grant.approval, now)
            case Assign():
                raise AssertionError(f"lease {lease.metadata.name} asks for one exporter")
            case Evict(lease=name):
                await self._evict(lease, name, now)
            case Wait(reason=reason, message=message):
                status = lifecycle.waiting(lease, reason=reason, message=message, now=now)
                await self._put_lease(lease, status)
            case Refuse(type=type, reason=reason, message=message):
                status = lifecycle.refused(
                    lease, type=type, reason=reason, message=message, now=now
                )
                lease = await self._put_lease(lease, status)
                self._events.emit(lease, reason=reason, message=message, warning=True)
                await self._label(lease)
            case _:
                assert_never(decision)

    async def _assign(self, lease: Lease, target: str, approval: Approval, now: datetime) -> None:
        exporter = self._views.exporters.get(lease.metadata.namespace, target)
        if exporter is None:
            raise _went("exporter", target)
        taken = _taken(exporter, lease, exporter.status.lease_epoch + 1)
        _, lease = await self._put_both(taken, _assigned(lease, taken, approval, now))
        self._tell_assigned(lease)

    async def _finish(
        self, lease: Lease, exporter: Exporter, approval: Approval, now: datetime
    ) -> None:
        """Write the second half of an assignment whose first half was observed."""
        status = _assigned(lease, exporter, approval, now).status
        self._tell_assigned(await self._put_lease(lease, status))

    def _tell_assigned(self, lease: Lease) -> None:
        assert lease.status.exporter_ref is not None
        text = f"assigned exporter {lease.status.exporter_ref.name}"
        self._events.emit(lease, reason="LeaseAssigned", message=text)

    async def _evict(self, by: Lease, name: str, now: datetime) -> None:
        for victim in self._labs.of(by.metadata.namespace).select((name,)):
            await self._end(victim, "Evicted", now)

    async def _forget(self, lab: LabIndex, now: datetime) -> None:
        """Delete leases whose retention is over."""
        await _all(self._guarded(lease, self._delete(lab, lease)) for lease in lab.ended.due(now))

    async def _delete(self, lab: LabIndex, lease: Lease) -> None:
        await self._objects.delete(lease)
        # Removed here and not when the watch delivers the deletion: until then it would be due
        # again.
        lab.ended.remove(lease)

    async def _put_exporter(self, exporter: Exporter) -> None:
        self._views.exporters.observe(await self._objects.update_status(exporter))

    async def _put_lease(self, lease: Lease, status: LeaseStatus) -> Lease:
        written = await self._objects.update_status(replace(lease, status=status))
        self._views.leases.observe(written)
        return written

    async def _put_both(self, first: A, second: B) -> tuple[A, B]:
        """Write an exporter and a lease, in the order that stays valid after a crash in between."""
        written = await self._objects.update_statuses(first, second)
        for value in written:
            if isinstance(value, Lease):
                self._views.leases.observe(value)
            else:
                assert isinstance(value, Exporter)
                self._views.exporters.observe(value)
        return written


def _told(decision: Wait, lease: Lease) -> bool:
    """Whether the lease's status already says that it waits, and why."""
    said = conditions.get(lease.status.conditions, "Pending")
    return (
        said is not None
        and said.status is ConditionStatus.TRUE
        and said.reason == decision.reason
        and said.message == decision.message
        and said.observed_generation == lease.metadata.generation
    )


_LOST = frozenset({"ExporterRemoved", "ExporterTaken"})
"""End reasons of leases whose exporter is no longer theirs."""


def _went(what: str, name: str) -> Conflict:
    """An object the pass decided on no longer exists; the next pass decides again."""
    return Conflict(f"{what} {name} was deleted in the meantime")


def _taken(exporter: Exporter, lease: Lease, epoch: int) -> Exporter:
    reference = LocalObjectReference(name=lease.metadata.name)
    uid = lease.metadata.uid
    status = replace(exporter.status, lease_ref=reference, lease_uid=uid, lease_epoch=epoch)
    return replace(exporter, status=status)


def _freed(exporter: Exporter) -> Exporter:
    return replace(exporter, status=replace(exporter.status, lease_ref=None, lease_uid=""))


def _assigned(lease: Lease, exporter: Exporter, approval: Approval, now: datetime) -> Lease:
    status = lifecycle.assigned(
        lease,
        exporter=exporter.metadata.name,
        approval=approval,
        epoch=exporter.status.lease_epoch,
        now=now,
    )
    return replace(lease, status=status)


async def _all(acts: Iterable[Awaitable[None]]) -> None:
    """Run many operations together, so that they share commits.

    Objects that changed meanwhile are left to the next pass, which their change starts; one
    conflict does not stop the others.
    """
    for error in await together(acts):
        if error is not None and not isinstance(error, NotFound):
            raise error


def watch_namespaces(views: Views, labs: Labs, add: Callable[[str], None]) -> None:
    """Start a pass whenever something a decision depends on changes, or becomes due."""

    def leases(old: Lease | None, new: Lease | None) -> None:
        if _matters(old, new):
            others(old, new)

    def others(old: Kind | None, new: Kind | None) -> None:
        value = new or old
        assert value is not None
        add(key_of(value)[0])

    labs.leases.listen(leases)
    views.exporters.listen(others)
    views.clients.listen(others)
    views.policies.listen(others)


def _matters(old: Lease | None, new: Lease | None) -> bool:
    """Conditions and sessions are written by this process; changes of them need no pass."""
    if old is None or new is None:
        return True
    return old.spec != new.spec or _deciding(old.status) != _deciding(new.status)


def _deciding(status: LeaseStatus) -> LeaseStatus:
    return replace(status, conditions=(), sessions=())
