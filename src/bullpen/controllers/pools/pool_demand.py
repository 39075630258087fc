"""The demand of waiting leases for pools: decided once for a whole namespace, and cached.

Every pool's pass asks for its share. The shares of all pools of a namespace are decided
together (``core.pools.demand``) and remain valid until a lease, an exporter, a right or a
pool changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.controllers.labs import Labs
from bullpen.controllers.targets.blueprints import owner_of
from bullpen.controllers.views import Views
from bullpen.core.leases.requests import Bookings, Lab, Request
from bullpen.core.matcher import Device, Matcher
from bullpen.core.pools import demand
from bullpen.core.pools.demand import Share, Source
from bullpen.core.targets import profiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The demand of leases for the pools of a namespace."""

    shares: Mapping[str, Share]
    """By pool name."""

    requests: tuple[Request, ...]
    """All waiting requests, including booked leases."""


NONE = Demand(shares={}, requests=())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decided:
    version: int
    sources: tuple[Source, ...]
    until: datetime | None
    """When time alone changes the demand."""

    demand: Demand


class PoolDemand:
    def __init__(self, views: Views, labs: Labs) -> None:
        self._views = views
        self._labs = labs
        self._decided: dict[str, _Decided] = {}

    def wanted(self, owner: ExporterSet, *more: Matcher) -> bool:
        """Whether a member of this set could serve a waiting lease, or one of ``more``."""
        member = Device(labels=profiles.labels(owner))
        wanted = (*more, *self._labs.of(owner.metadata.namespace).wanted)
        return any(self._could_serve(owner, member, matcher) for matcher in wanted)

    def _could_serve(self, owner: ExporterSet, member: Device, matcher: Matcher) -> bool:
        """Whether an existing member, or a new one, matches."""
        if not matcher.exporter:
            return not matcher.unrestricted and matcher.matches(member)
        named = self._views.exporters.get(owner.metadata.namespace, matcher.exporter)
        found = owner_of(named) if named is not None else None
        return found is not None and found.uid == owner.metadata.uid

    def of(self, namespace: str, sources: tuple[Source, ...], *, now: datetime) -> Demand:
        """The demand of leases for ``sources``, which are all pools of the namespace."""
        lab, known = self._labs.of(namespace), self._decided.get(namespace)
        if (
            known is not None
            and (known.version, known.sources) == (lab.version, sources)
            and (known.until is None or now < known.until)
        ):
            return known.demand
        found = self._decide(namespace, sources, now)
        leads = {source.lead for source in sources}
        moments = (demand.next_booking(found.requests, lead, now=now) for lead in leads)
        self._decided[namespace] = _Decided(
            version=lab.version,
            sources=sources,
            until=min((moment for moment in moments if moment is not None), default=None),
            demand=found,
        )
        return found

    def _decide(self, namespace: str, sources: tuple[Source, ...], now: datetime) -> Demand:
        lab = self._labs.of(namespace)
        requests = tuple(self._labs.request(lease, now=now) for lease in lab.unserved())
        booked = tuple(request for request in requests if request.due > now)
        shares = demand.share(
            Lab(
                offers=lab.offers,
                requests=requests,
                policies=self._labs.policies(namespace),
                bookings=Bookings(requests=booked, ends=lab.ends, now=now) if booked else None,
            ),
            sources,
            pool_of=lambda exporter: self._pool_of(namespace, exporter),
            now=now,
        )
        return Demand(shares=shares, requests=requests)

    def _pool_of(self, namespace: str, exporter: str) -> str | None:
        """The set an exporter is a member of."""
        found = self._views.exporters.get(namespace, exporter)
        owner = owner_of(found) if found is not None else None
        return owner.name if owner is not None else None
