"""How busy each pool is, for autoscalers.

The leases that wait for a pool are decided as for the sizing of pools (``core.pools.demand``):
a lease counts for one pool at most, and not at all if a free exporter is about to serve it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Hashable

from bullpen.api.fields import Kind
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.api.objects import meta_of
from bullpen.controllers.labs import Labs
from bullpen.controllers.views import Views
from bullpen.core.leases.requests import Bookings, Lab
from bullpen.core.matcher import Device, Matcher
from bullpen.core.pools import demand, lasting_pool
from bullpen.core.pools.demand import Source
from bullpen.core.pools.pool_load import PoolLoad
from bullpen.core.targets import profiles
from bullpen.errors import NotFound
from bullpen.kit.clock import Clock
from bullpen.kit.selectors import parse_labels
from bullpen.services.signals import Signals

Pool = ExporterSet | VirtualTargetPool

LOOK_SECONDS = 60.0
"""How long a watcher waits for a change before it looks again by itself."""


class PoolLoads:
    """Made before the views run, and only where it is used: it follows every lease."""

    def __init__(self, views: Views, labs: Labs, *, signals: Signals, clock: Clock) -> None:
        self._views = views
        self._labs = labs
        self._signals = signals
        self._clock = clock
        for view in (views.sets, views[VirtualTargetPool], labs.leases, views.exporters):
            view.listen(self._changed)

    def of(self, kind: type[Pool], namespace: str, name: str) -> PoolLoad:
        """The use of a pool now. Raises ``NotFound``."""
        found = self._views[kind].get(namespace, name)
        if found is None:
            raise NotFound(f"there is no {kind.kind} {name} in namespace {namespace}")
        waiting = self._waiting(namespace)
        return PoolLoad(
            replicas=found.status.replicas,
            leased=self._leased(found),
            waiting=waiting.get(_source_name(found), 0),
        )

    async def watch(
        self, kind: type[Pool], namespace: str, name: str
    ) -> AsyncGenerator[PoolLoad, None]:
        """The use of a pool now and after each change, and again after a minute without one."""
        seen: PoolLoad | None = None

        def changed() -> PoolLoad | None:
            found = self.of(kind, namespace, name)
            return found if found != seen else None

        while True:
            found = await self._signals.until(lambda: (_key(namespace),), changed, LOOK_SECONDS)
            seen = found or seen
            if seen is not None:
                yield seen

    def _changed(self, old: Kind | None, new: Kind | None) -> None:
        changed = new or old
        assert changed is not None
        self._signals.notify(_key(meta_of(changed).namespace))

    def _leased(self, pool: Pool) -> int:
        """How many members a lease holds.

        Not the status of the pool: it is written later than the index changes, and a lease that was
        just assigned must not be counted as waiting and as assigned.
        """
        if not pool.status.selector:
            return 0
        members = Matcher(selector=parse_labels(pool.status.selector))
        offers = self._labs.of(pool.metadata.namespace).offers
        return sum(1 for offer in offers.enabled(members) if offer.holder)

    def _waiting(self, namespace: str) -> dict[str, int]:
        """By pool, the number of leases for which it lacks a member."""
        lab, now = self._labs.of(namespace), self._clock.now()
        requests = tuple(self._labs.request(lease, now=now) for lease in lab.unserved())
        if not requests:
            return {}
        booked = tuple(request for request in requests if request.due > now)
        shares = demand.share(
            Lab(
                offers=lab.offers,
                requests=requests,
                policies=self._labs.policies(namespace),
                bookings=Bookings(requests=booked, ends=lab.ends, now=now) if booked else None,
            ),
            self._sources(namespace),
            pool_of=lambda exporter: None,
            now=now,
        )
        return {name: len(share.waiting) for name, share in shares.items()}

    def _sources(self, namespace: str) -> list[Source]:
        """Every pool of the namespace; how far it may grow is for the autoscaler to say."""
        pools: list[Pool] = [
            *self._views.sets.all(namespace),
            *self._views[VirtualTargetPool].all(namespace),
        ]
        return [
            Source(
                name=_source_name(pool),
                member=Device(labels=_member_labels(pool)),
                starting=max(0, pool.status.replicas - pool.status.ready_replicas),
            )
            for pool in pools
            if pool.metadata.deletion_timestamp is None
        ]


def _member_labels(pool: Pool) -> dict[str, str]:
    if isinstance(pool, VirtualTargetPool):
        return lasting_pool.member_labels(pool)
    return profiles.labels(pool)


def _source_name(pool: Pool) -> str:
    """Pools of both kinds may have the same name."""
    return f"{pool.kind}/{pool.metadata.name}"


def _key(namespace: str) -> Hashable:
    return ("pool loads", namespace)
