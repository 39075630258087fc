"""Which waiting leases make which pool grow.

A lease counts for at most one pool, and only if the pool could serve it: the selector
matches the labels of the pool's members, a policy allows it, it requests no exporter by
name, it is due, and no exporter that is already free will be assigned to it. The order in
which things are listed does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from bullpen.core.exporters.offers import Offer, OfferIndex
from bullpen.core.leases import access
from bullpen.core.leases.access import Policies
from bullpen.core.leases.scheduler import Assign, Lab, Request, schedule
from bullpen.core.matcher import Device
from bullpen.kit import times


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The part of a pool that demand looks at."""

    name: str
    member: Device
    """A member that it could create."""

    starting: int = 0
    """Starting members, available to the first leases."""

    room: int | None = None
    """How many more members it may create; None for no limit."""

    lead: timedelta = timedelta(0)
    """How long before it is needed a member must start booting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The demand of leases for one pool."""

    claimed: tuple[str, ...] = ()
    """Leases that will get a member that is free now or soon."""

    waiting: tuple[str, ...] = ()
    """Leases for which a member has to be created, or is starting."""


def share(
    lab: Lab,
    sources: Sequence[Source],
    *,
    pool_of: Callable[[str], str | None],
    now: datetime,
) -> dict[str, Share]:
    """The share of every source; ``pool_of`` maps an exporter to its source, if it has one.

    A lease goes to a source with a starting member, else to a source with room for one, else to
    the first source by name, which then reports that it cannot grow.
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
    """When the next booked lease is so close that its member must start booting."""
    starts = (times.shifted(request.since, -lead) for request in requests)
    return min((start for start in starts if start > now), default=None)


def _outlook(lab: Lab, requests: tuple[Request, ...]) -> Iterable[Assign | _Unserved]:
    """The requests that free exporters will serve, and those left over, in queue order."""
    offers = OfferIndex(_soon(o) for o in _concerned(lab.offers, requests) if o.free or o.settling)
    for decision in schedule(Lab(offers=offers, requests=requests, policies=lab.policies)):
        yield decision if isinstance(decision, Assign) else _Unserved(lease=decision.lease)


def _concerned(offers: OfferIndex, requests: tuple[Request, ...]) -> Iterable[Offer]:
    """Enabled offers that some request could get. There may be thousands of others."""
    found: dict[str, Offer] = {}
    for matcher in {request.matcher for request in requests}:
        if not matcher.unrestricted:
            found.update((offer.name, offer) for offer in offers.enabled(matcher))
    return found.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unserved:
    lease: str


def _soon(offer: Offer) -> Offer:
    """An offer that is winding down counts as free: it will be sooner than any boot."""
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
    if request.client_labels is None or request.matcher.unrestricted:
        return False
    late = request.since > times.shifted(now, source.lead)
    if late or not request.matcher.matches(source.member):
        return False
    approval = access.approve(
        policies,
        client=request.client_labels,
        exporter=source.member,
        duration=request.duration,
    )
    return approval is not None
