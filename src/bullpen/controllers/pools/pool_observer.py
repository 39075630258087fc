"""A set as sizing sees it: its members, its blueprint, and the demand of leases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.controllers.labs import Labs
from bullpen.controllers.pools.member_views import MemberViews, owner_key
from bullpen.controllers.pools.pool_demand import PoolDemand
from bullpen.controllers.targets.blueprints import Blueprint, Blueprints
from bullpen.controllers.targets.instance_view import InstanceView
from bullpen.controllers.views import Views
from bullpen.core.exporters import presence
from bullpen.core.matcher import Device
from bullpen.core.pools import (
    boot_times,
    demand,
    member_names,
    members,
    pool_status,
    refusals,
    start_throttle,
)
from bullpen.core.pools.boot_times import BootTimes
from bullpen.core.pools.demand import Share, Source
from bullpen.core.pools.member_index import MemberIndex
from bullpen.core.pools.members import PATIENCE, Patience
from bullpen.core.pools.scale_plan import Create, Pool
from bullpen.core.pools.start_throttle import START_THROTTLE, StartHistory, StartThrottle
from bullpen.core.targets import profiles
from bullpen.kit.clock import Clock, WallTimes
from bullpen.runtime.informer import Key, key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Settings of the operator for all pools."""

    patience: Patience = PATIENCE
    throttle: StartThrottle = START_THROTTLE


TUNING = Tuning()


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The current state of one set."""

    owner: ExporterSet
    blueprint: Blueprint
    revision: str
    pool: Pool
    boots: BootTimes
    """How long its members take to become ready."""

    booking: datetime | None
    """When a member must start booting for the next booked lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The part of a set's state that does not depend on leases."""

    blueprint: Blueprint
    revision: str
    members: MemberIndex
    start_history: StartHistory


class PoolObserver:
    def __init__(
        self,
        views: Views,
        labs: Labs,
        instance_view: InstanceView,
        blueprints: Blueprints,
        *,
        clock: Clock,
        tuning: Tuning = TUNING,
    ) -> None:
        self._views = views
        self._labs = labs
        self._instance_view = instance_view
        self._blueprints = blueprints
        self._clock = clock
        self._tuning = tuning
        self.member_views = MemberViews(
            views, labs, instance_view, blueprints, clock=clock, patience=tuning.patience
        )
        self.demand = PoolDemand(views, labs)
        self._wall = WallTimes(clock)
        self._epoch = self._wall.epoch
        self._watched_since = _whole(clock.now())
        self._boots: dict[Key, list[timedelta]] = {}
        views.exporters.listen(self._booted)

    def _booted(self, old: Exporter | None, new: Exporter | None) -> None:
        """Measure how long a member took from the request for its instance to being ready.

        A member that comes back after it lost its connection has not booted.
        """
        if new is None or not _is_ready(new) or (old is not None and members.was_ready(old)):
            return
        asked, owner = self._instance_view.asked_at(new), owner_key(new)
        if asked is not None and owner is not None and new.status.lease_epoch == 0:
            self._boots.setdefault(owner, []).append(self._clock.now() - asked)

    def _watch_began(self, now: datetime) -> datetime:
        """Since when the demand has been watched by the clock as it is set now.

        How long ago a recorded time was is unknown after the clock was set.
        """
        if self._wall.epoch != self._epoch:
            self._epoch, self._watched_since = self._wall.epoch, _whole(now)
        return self._watched_since

    def observe(self, owner: ExporterSet, *, taken: Mapping[str, str], now: datetime) -> Look:
        """The current state of ``owner``; ``taken`` are names its members cannot have."""
        spec, state = owner.spec, self._state(owner, now)
        made, problem = state.blueprint.profile, state.blueprint.problem
        boots = boot_times.of(owner.status).measured(self._boots.pop(key_of(owner), []))
        share, booking = self._share(owner, now)
        pool = Pool(
            name=owner.metadata.name,
            replicas_min=spec.min_replicas,
            replicas_max=spec.max_replicas or None,
            available_min=spec.min_available_replicas,
            cooldown=spec.scale_down_cooldown,
            paused=spec.paused,
            policy=spec.scale_down_policy,
            removals=tuple(removal.uid for removal in spec.removals),
            on_demand=made is not None and made.on_demand,
            members=state.members,
            waiting=len(share.waiting),
            claimed=len(share.claimed),
            surplus=pool_status.surplus(owner, watched_since=self._watch_began(now), now=now),
            start_history=state.start_history,
            refusals=pool_status.refusals(owner),
            held=pool_status.capacity_hold(owner),
            halted=problem.message if problem is not None else "",
            created=owner.status.created,
            taken=taken,
            stuck=self._stuck(owner),
        )
        return Look(
            owner=owner,
            blueprint=state.blueprint,
            revision=state.revision,
            pool=pool,
            boots=boots,
            booking=booking,
        )

    def _stuck(self, owner: ExporterSet) -> dict[str, str]:
        """The instances of present and past members that cannot be removed."""
        name = owner.metadata.name
        found = self._instance_view.stuck(owner.metadata.namespace)
        return {key: why for key, why in found.items() if member_names.number(name, key) >= 0}

    def looks_after(self, owner: ExporterSet) -> bool:
        """Whether this process sizes the set: it uses one of our provisioners.

        A set without a class belongs to the process that owns its members; if it has none, every
        process reports the missing class, with the same message.
        """
        wanted = self._blueprints.provisioner(owner)
        if wanted is not None:
            return self._instance_view.alone or wanted in self._instance_view.provisioners
        members = self.member_views.exporters(owner.metadata.uid)
        return not members or any(map(self._instance_view.looks_after, members))

    def is_waited_for(self, namespace: str) -> bool:
        """Whether any lease of the namespace waits."""
        return bool(self._labs.of(namespace).waiting)

    def sets(self, namespace: str) -> Iterator[ExporterSet]:
        """The sets of a namespace that are not being deleted."""
        for owner in self._views.sets.all(namespace):
            if owner.metadata.deletion_timestamp is None:
                yield owner

    def _state(self, owner: ExporterSet, now: datetime) -> _State:
        blueprint = self._blueprints.of(owner)
        made = blueprint.profile
        revision = made.revision if made is not None else owner.status.revision
        return _State(
            blueprint=blueprint,
            revision=revision,
            members=self.member_views.members(
                owner.metadata.uid,
                revision=revision,
                removals=frozenset(removal.uid for removal in owner.spec.removals),
                boot_timeout=made.boot_timeout if made is not None else timedelta(0),
                now=now,
            ),
            start_history=pool_status.start_history(
                owner, revision, throttle=self._tuning.throttle, now=now
            ),
        )

    def _share(self, owner: ExporterSet, now: datetime) -> tuple[Share, datetime | None]:
        """The demand of leases for this set, given what all other sets could serve."""
        if not self.demand.wanted(owner):
            return Share(), None
        namespace = owner.metadata.namespace
        sources = tuple(self._source(found, now) for found in self.sets(namespace))
        found = self.demand.of(namespace, sources, now=now)
        lead = boot_times.of(owner.status).lead
        booking = demand.next_booking(found.requests, lead, now=now)
        return found.shares.get(owner.metadata.name, Share()), booking

    def _source(self, owner: ExporterSet, now: datetime) -> Source:
        state = self._state(owner, now)
        hold = start_throttle.allowance(
            state.start_history,
            state.members.whole(),
            held=pool_status.capacity_hold(owner),
            now=now,
        ).hold
        refused = refusals.of(pool_status.refusals(owner), Create.__name__)
        return pool_status.source(
            owner.metadata.name,
            state.members,
            member=Device(labels=profiles.labels(owner)),
            ceiling=owner.spec.max_replicas or None,
            stalled=any((state.blueprint.problem, hold, refused, owner.spec.paused)),
            lead=boot_times.of(owner.status).lead,
        )


def _is_ready(exporter: Exporter) -> bool:
    return presence.online(exporter) and presence.registered(exporter)


def _whole(moment: datetime) -> datetime:
    """A status has whole seconds; a time it cannot hold would be written again in every pass."""
    return moment.replace(microsecond=0)
