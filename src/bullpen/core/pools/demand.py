"""Which waiting leases make which pool grow.

A lease counts for one pool at most, and only if the pool could serve it: the selector
matches what the pool makes, a policy allows it, it asks for no exporter by name, it is
due, and no exporter that is free already will have it. The order things are listed in
does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from bullpen.core.exporters.offers import Offer, OfferIndex
from bullpen.core.leases import access
from bullpen.core.leases.access import Policies
from bullpen.core.leases.scheduler import Assign, Lab, Request, schedule
from bullpen.kit import times


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A pool, as far as demand looks at it."""

    name: str
    labels: Mapping[str, str]
    """What its members have."""

    starting: int = 0
    """Members on their way, for whoever comes first."""

    room: int | None = None
    """How many more it may create; None for as many as one likes."""

    lead: timedelta = timedelta(0)
    """How long before it is needed a member must begin to boot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What leases want of one pool."""

    claimed: tuple[str, ...] = ()
    """Leases that will have a member which is free now or in a moment."""

    waiting: tuple[str, ...] = ()
    """Leases for which a member has to be made, or is being made."""


def share(
    lab: Lab,
    sources: Sequence[Source],
    *,
    pool_of: Callable[[str], str | None],
    now: datetime,
) -> dict[str, Share]:
    """What every source gets; ``pool_of`` says which source an exporter belongs to, if any.

    A lease goes where a member is starting already, else where there is room for one,
    else to whoever comes first by name and then says that it cannot grow.
    """
    horizon = times.shifted(now, max((source.lead for source in sources), default=timedelta(0)))
    requests = tuple(r for r in lab.requests if r.since <= horizon)
    claimed: dict[str, list[str]] = {source.name: [] for source in sources}
    waiting: dict[str, list[str]] = {source.name: [] for source in sources}
    by_name = {request.name: request for request in requests}
    for decision in _outlook(lab, requests):
        if isinstance(decision, Assign):
            owner = pool_of(decision.exporter)
            if owner in claimed:
                claimed[owner].append(decision.lease)
            continue
        chosen = _choose(lab.policies, by_name[decision.lease], sources, waiting, now)
        if chosen is not None:
            waiting[chosen.name].append(decision.lease)
    return {
        source.name: Share(claimed=tuple(claimed[source.name]), waiting=tuple(waiting[source.name]))
        for source in sources
    }


def next_booking(requests: Iterable[Request], lead: timedelta, *, now: datetime) -> datetime | None:
    """When the next booked lease comes so near that its member must begin to boot."""
    starts = (times.shifted(request.since, -lead) for request in requests)
    return min((start for start in starts if start > now), default=None)


def _outlook(lab: Lab, requests: tuple[Request, ...]) -> Iterable[Assign | _Unserved]:
    """Who will be served by what is free, and who is left, in the order of the queue."""
    offers = OfferIndex(_soon(o) for o in _concerned(lab.offers, requests) if o.free or o.settling)
    for decision in schedule(Lab(offers=offers, requests=requests, policies=lab.policies)):
        yield decision if isinstance(decision, Assign) else _Unserved(lease=decision.lease)


def _concerned(offers: OfferIndex, requests: tuple[Request, ...]) -> Iterable[Offer]:
    """Enabled offers that some request could have. There may be thousands of others."""
    found: dict[str, Offer] = {}
    for selector, exporter in {(r.selector, r.exporter) for r in requests}:
        named = offers.get(exporter) if exporter else None
        matching = offers.enabled(selector) if selector and not exporter else ()
        for offer in (*((named,) if named is not None and named.enabled else ()), *matching):
            found[offer.name] = offer
    return found.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unserved:
    lease: str


def _soon(offer: Offer) -> Offer:
    """What winds down will be free sooner than anything boots."""
    return offer if offer.free else replace(offer, idle=True)


def _choose(
    policies: Policies,
    request: Request,
    sources: Sequence[Source],
    waiting: Mapping[str, Sequence[str]],
    now: datetime,
) -> Source | None:
    found = [s for s in sources if _could_serve(policies, request, s, now)]

    def preference(source: Source) -> tuple[bool, bool, str]:
        queued = len(waiting[source.name])
        starting = queued < source.starting
        room = source.room is None or queued < source.starting + source.room
        return (not starting, not room, source.name)

    return min(found, key=preference, default=None)


def _could_serve(policies: Policies, request: Request, source: Source, now: datetime) -> bool:
    if request.exporter or request.client_labels is None or not request.selector:
        return False
    if request.since > times.shifted(now, source.lead) or not request.selector.matches(
        source.labels
    ):
        return False
    approval = access.approve(
        policies,
        client=request.client_labels,
        exporter=source.labels,
        duration=request.duration,
    )
    return approval is not None
