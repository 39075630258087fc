"""A set as sizing looks at it: its members, its blueprint, and what leases want of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from bullpen.api.exporter import Exporter
from bullpen.api.exporterset import ExporterSet
from bullpen.controllers import observing
from bullpen.controllers.blueprints import Blueprint, Blueprints, owner_of
from bullpen.controllers.fleet import Fleet
from bullpen.controllers.rosters import Queue, Rosters, owner_key
from bullpen.controllers.views import Views
from bullpen.core import access, demand, outlook, pools, presence, profiles, ramp
from bullpen.core.crew import Crew
from bullpen.core.demand import Share, Source
from bullpen.core.members import PATIENCE, Patience
from bullpen.core.ramp import RAMP, Footing, Ramp
from bullpen.core.scaling import Pool
from bullpen.core.scheduling import Lab
from bullpen.core.stock import Stock
from bullpen.kit.clock import Clock
from bullpen.runtime.informer import Key, key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What an operator may set about all pools."""

    patience: Patience = PATIENCE
    ramp: Ramp = RAMP


TUNING = Tuning()


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One set as it is now."""

    owner: ExporterSet
    blueprint: Blueprint
    revision: str
    pool: Pool
    boot: timedelta | None
    """How long its members take to become ready."""

    booking: datetime | None
    """When the next booked lease needs a member to begin to boot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """What of a set does not depend on leases."""

    blueprint: Blueprint
    revision: str
    members: Crew
    footing: Footing


class PoolObserver:
    def __init__(
        self,
        views: Views,
        fleet: Fleet,
        blueprints: Blueprints,
        *,
        connected: Callable[[Key], bool],
        clock: Clock,
        tuning: Tuning = TUNING,
    ) -> None:
        self._views = views
        self._fleet = fleet
        self._blueprints = blueprints
        self._connected = connected
        self._clock = clock
        self._tuning = tuning
        self.rosters = Rosters(views, fleet, blueprints, clock=clock, patience=tuning.patience)
        self.queue = Queue(views)
        self._boots: dict[Key, list[timedelta]] = {}
        views.exporters.listen(self._booted)

    def _booted(self, old: Exporter | None, new: Exporter | None) -> None:
        """Measure how long a member took from being asked for to being ready."""
        if new is None or not _is_ready(new) or (old is not None and _is_ready(old)):
            return
        asked, owner = self._fleet.asked_at(new), owner_key(new)
        if asked is not None and owner is not None and new.status.lease_epoch == 0:
            self._boots.setdefault(owner, []).append(self._clock.now() - asked)

    def observe(self, owner: ExporterSet, *, taken: frozenset[str], now: datetime) -> Look:
        """``owner`` now; ``taken`` are names its members cannot have."""
        spec, state = owner.spec, self._state(owner, now)
        made, problem = state.blueprint.profile, state.blueprint.problem
        boot = outlook.typical(owner.status.typical_boot, self._boots.pop(key_of(owner), []))
        share, booking = self._demand(owner, now)
        pool = Pool(
            name=owner.metadata.name,
            replicas_min=spec.min_replicas,
            replicas_max=spec.max_replicas or None,
            available_min=spec.min_available_replicas,
            cooldown=spec.scale_down_cooldown,
            on_demand=made is not None and made.on_demand,
            members=state.members,
            waiting=len(share.waiting),
            claimed=len(share.claimed),
            surplus=pools.surplus(owner),
            footing=state.footing,
            halted=problem.message if problem is not None else "",
            created=owner.status.created,
            taken=taken,
        )
        return Look(
            owner=owner,
            blueprint=state.blueprint,
            revision=state.revision,
            pool=pool,
            boot=boot,
            booking=booking,
        )

    def looks_after(self, owner: ExporterSet) -> bool:
        """Whether the set is ours to size: it wants one of our provisioners.

        One without a class is whose members it has. Without members either, everybody
        may say what is missing, and says the same.
        """
        wanted = self._blueprints.provisioner(owner)
        if wanted is not None:
            return self._fleet.alone or wanted in self._fleet.provisioners
        members = self.rosters.exporters(owner.metadata.uid)
        return not members or any(map(self._fleet.looks_after, members))

    def sets(self, namespace: str) -> Iterator[ExporterSet]:
        """The sets of a namespace that are to stay."""
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
            members=self.rosters.members(owner.metadata.uid, revision=revision, now=now),
            footing=pools.footing(owner, revision, ramp=self._tuning.ramp),
        )

    def _demand(self, owner: ExporterSet, now: datetime) -> tuple[Share, datetime | None]:
        """What leases want of this set, given what they could have of all the others."""
        namespace = owner.metadata.namespace
        if not self.queue.wants(owner):
            return Share(), None
        waiting = self.queue.waiting(namespace)
        free = self.queue.free(namespace)
        lab = Lab(
            offers=Stock(observing.offer(self._views, e, self._connected) for e in free),
            requests=tuple(
                observing.request(self._views, w, {}, now=now) for w in waiting.values()
            ),
            policies=access.policies(self._views.policies.all(namespace)),
        )
        sources = [self._source(found, now) for found in self.sets(namespace)]
        owners = {e.metadata.name: found.name for e in free if (found := owner_of(e)) is not None}
        shares = demand.share(lab, sources, members=owners, now=now)
        lead = outlook.lead(owner.status.typical_boot)
        booking = demand.next_booking(lab.requests, lead, now=now)
        return shares.get(owner.metadata.name, Share()), booking

    def _source(self, owner: ExporterSet, now: datetime) -> Source:
        state = self._state(owner, now)
        hold = ramp.allowance(state.footing, state.members.everybody(), now=now).hold
        return pools.source(
            owner.metadata.name,
            state.members,
            labels=profiles.labels(owner),
            ceiling=owner.spec.max_replicas or None,
            stalled=state.blueprint.problem is not None or hold is not None,
            lead=outlook.lead(owner.status.typical_boot),
        )


def _is_ready(exporter: Exporter) -> bool:
    return presence.online(exporter) and presence.registered(exporter)
