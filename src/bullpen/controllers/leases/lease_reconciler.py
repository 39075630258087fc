"""Keeps leases and exporters consistent: assigns, ends, repairs and labels leases.

One pass decides for a whole namespace, because assignments can only be decided over all
requests, but it looks only at what changed. Passes are started by events and by time, never
by polling. ``lease_actions`` performs what a pass decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeGuard, assert_never

from bullpen.api.fields import Kind
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease, LeaseStatus
from bullpen.api.objects import Objects
from bullpen.controllers.labs import Labs
from bullpen.controllers.leases.lease_actions import LeaseActions
from bullpen.controllers.object_edit import together
from bullpen.controllers.views import Views
from bullpen.core.lab_index import LabIndex, News
from bullpen.core.leases import lifecycle, scheduler
from bullpen.core.leases.assignment import Mend, mend_exporter, mend_lease
from bullpen.core.leases.lease_group import claim_uid
from bullpen.core.leases.lifecycle import Phase
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
from bullpen.errors import NotFound
from bullpen.kit import times
from bullpen.kit.clock import Clock
from bullpen.runtime.events import Events
from bullpen.runtime.informer import key_of
from bullpen.runtime.loop import Outcome

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
        self._views = views
        self._clock = clock
        self._supplies = supplies
        self._faults = views.faults
        self._labs = labs
        self._actions = LeaseActions(objects, views, labs, events)

    async def reconcile(self, namespace: str) -> Outcome:
        now, steady = self._clock.now(), self._clock.steady()
        lab = self._labs.of(namespace)
        news = lab.take(now, steady=steady)
        try:
            await self._limit(lab, news, now)
            await self._end_due(lab, news, now, steady)
            await self._repair(namespace, lab, news, now)
            await self._hand_over(lab, news)
            await self._schedule(namespace, lab, news, now)
            await self._label_ended(lab)
        except BaseException:
            lab.give_back(news)
            lab.requests.everything()
            raise
        retry_at = now + FAULT_RETRY if self._give_back_faulty(namespace) else None
        over = lab.holding_times.next_due()
        over_at = times.shifted(now, over - steady) if over is not None else None
        moments = (lab.next_moment(), over_at, retry_at)
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
        await _all(self._guarded(lease, self._actions.limit(lease, to)) for lease, to in changed)

    async def _end_due(self, lab: LabIndex, news: News, now: datetime, steady: timedelta) -> None:
        due: list[tuple[Lease, str]] = []
        for lease in lab.select(news.leases):
            with self._faults.guarding(_END, lease):
                known = self._labs.client_exists(lease)
                held = lab.holding_times.held(lease.metadata.name, steady=steady)
                reason = lifecycle.due_to_end(lease, client_exists=known, held=held, now=now)
                if reason:
                    due.append((lease, reason))
        await _all(self._guarded(lease, self._actions.end(lease, why, now)) for lease, why in due)

    async def _guarded(self, value: Kind, act: Awaitable[None]) -> None:
        """Run ``act``; an unexpected failure affects ``value`` alone."""
        with self._faults.guarding(_WRITE, value):
            await act

    async def _repair(self, namespace: str, lab: LabIndex, news: News, now: datetime) -> None:
        """Finish or undo assignments that a crash or a manual edit left incomplete."""
        actions = self._actions
        exporters = [
            (mend, exporter)
            for name in sorted(news.exporters)
            if (exporter := self._views.exporters.get(namespace, name)) is not None
            and (mend := self._mend(exporter)) is not Mend.NOTHING
        ]
        await _all(
            self._guarded(exporter, actions.repair_exporter(mend, exporter, now))
            for mend, exporter in exporters
        )
        leases = [
            (mend, lease)
            for lease in lab.select(news.leases)
            if lease.status.exporter_ref is not None
            and (mend := mend_lease(lease, actions.exporter_of(lease))) is not Mend.NOTHING
        ]
        await _all(
            self._guarded(lease, actions.repair_lease(mend, lease, now)) for mend, lease in leases
        )

    def _mend(self, exporter: Exporter) -> Mend:
        lease = self._actions.lease_of(exporter)
        return mend_exporter(exporter, lease, self._actions.partners(lease))

    async def _hand_over(self, lab: LabIndex, news: News) -> None:
        """Transfer leases to the clients their specs name."""
        moving = [
            lease
            for lease in lab.select(news.leases)
            if lease.status.exporter_ref is not None and lifecycle.handing_over(lease)
        ]
        await _all(self._guarded(lease, self._actions.hand_over(lease)) for lease in moving)

    async def _schedule(self, namespace: str, lab: LabIndex, news: News, now: datetime) -> None:
        for name in sorted(news.leases):
            self._queue(lab, name, now)
        if not len(lab.requests):
            return
        policies, supplies = self._labs.policies(namespace), self._supplies(namespace)
        requests = lab.requests
        requests.under(policies, supplies)
        whole = Lab(
            offers=lab.offers,
            requests=(),
            policies=policies,
            supplies=supplies,
            bookings=lab.bookings(now),
        )
        new = self._decided(whole, requests.newcomers(), lab, now)
        at_once = [decision for decision in new if isinstance(decision, Assign)]
        requests.served(decision.request for decision in at_once)
        await self._carry_out(at_once, lab, now)
        await self._carry_out(self._decided(whole, requests.take(), lab, now), lab, now)

    def _queue(self, lab: LabIndex, name: str, now: datetime) -> None:
        """Update the queue with one lease that changed or became due.

        Leases that are assigned together are one request under the name of the first.
        """
        lease = lab.waiting.get(name)
        if lease is None:
            lab.requests.remove(name)
            return
        with self._faults.guarding(_REQUEST, lease):
            group = lab.groups.assignable(lease)
            phase = lifecycle.phase(lease, now=now) if group[:1] == (lease,) else None
            if phase is Phase.WAITING:
                lab.requests.put(self._labs.request(*group, now=now))
            elif phase is Phase.SCHEDULED:
                lab.requests.book(self._labs.request(*group, now=now))
            else:
                lab.requests.remove(name)

    def _decided(
        self, whole: Lab, requests: tuple[Request, ...], lab: LabIndex, now: datetime
    ) -> tuple[Decision, ...]:
        # A lease that this pass has just ended is still in the index.
        asking = tuple(asked for asked in requests if asked.name in lab.waiting)
        if not asking:
            return ()
        leases = {asked.name: lab.waiting[asked.name] for asked in asking}
        booked = whole.bookings.requests if whole.bookings is not None else ()
        handicaps: dict[str, timedelta] = {}
        if len(asking) + len(booked) > 1:
            clients = {request.client for request in (*asking, *booked)}
            handicaps = lab.fair_share.handicaps(clients, now=now)
        return self._decide(replace(whole, requests=asking, handicaps=handicaps), leases)

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

    async def _carry_out(self, decisions: Iterable[Decision], lab: LabIndex, now: datetime) -> None:
        """Perform only what differs: most waiting leases already have the status they would get."""
        acts = [(decision, lab.waiting[request_of(decision)]) for decision in decisions]
        await _all(
            self._guarded(lease, self._perform(decision, lease, lab, now))
            for decision, lease in acts
            if not (_waits(decision, lease) and _told(decision, lease))
        )

    async def _perform(
        self, decision: Decision, lease: Lease, lab: LabIndex, now: datetime
    ) -> None:
        """Carry out a decision about a waiting lease."""
        match decision:
            case Assign(grants=grants):
                await self._actions.assign(lab.groups.assignable(lease), grants, now)
            case Evict(lease=name):
                for victim in lab.select((name,)):
                    await self._actions.end(victim, "Evicted", now)
            case Wait():
                for member in lab.groups.assignable(lease):
                    await self._actions.wait(member, decision, now)
            case Refuse() if claim_uid(lease):
                # The claim chooses other exporters, or says why it cannot be served.
                for member in lab.groups.assignable(lease):
                    await self._actions.wait(member, decision, now)
            case Refuse():
                await self._actions.refuse(lease, decision, now)
            case _:
                assert_never(decision)

    async def _label_ended(self, lab: LabIndex) -> None:
        """Label ended leases, which removes them from all views: the last step of their life.

        It comes last in a pass, so that no waiting lease waits for it, and everything that an end
        starts has seen the ended lease.
        """
        ended = tuple(lab.ended.values())
        await _all(self._guarded(lease, self._actions.label(lease)) for lease in ended)


def _waits(decision: Decision, lease: Lease) -> TypeGuard[Wait | Refuse]:
    return isinstance(decision, Wait) or (isinstance(decision, Refuse) and bool(claim_uid(lease)))


def _told(decision: Wait | Refuse, lease: Lease) -> bool:
    return lifecycle.says_waiting(lease, reason=decision.reason, message=decision.message)


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
    """Conditions and sessions need no pass, unless they change when an idle lease ends."""
    if old is None or new is None or lifecycle.idle_at(old) != lifecycle.idle_at(new):
        return True
    return old.spec != new.spec or _deciding(old.status) != _deciding(new.status)


def _deciding(status: LeaseStatus) -> LeaseStatus:
    return replace(status, conditions=(), sessions=())
