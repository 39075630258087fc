"""Which waiting leases make which pool grow.

A lease counts for at most one pool, and only if the pool could serve it: the selector
matches the labels of the pool's members, a policy allows it, it requests no exporter by
name, it is due, no exporter that is already free will be assigned to it, and the pool's last
places are not booked for others before it would be over. The order in which things are listed
does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from bullpen.core.exporters.offers import Offer, OfferIndex
from bullpen.core.leases import access
from bullpen.core.leases.access import Policies
from bullpen.core.leases.bookings import Fences, PoolPlaces, concerned
from bullpen.core.leases.requests import Assign, Lab, Refuse, Request, Wait, Want
from bullpen.core.leases.scheduler import schedule
from bullpen.core.leases.target_set import largest_matching
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
    """Leases for which a member has to be created, or is starting; once for each member."""


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
    requests = tuple(r for r in lab.requests if r.due <= horizon)
    claimed: dict[str, list[str]] = {source.name: [] for source in sources}
    waiting: dict[str, list[str]] = {source.name: [] for source in sources}
    outlook = _outlook(lab, requests)
    for name, exporter in outlook.served:
        owner = pool_of(exporter)
        if owner in claimed:
            claimed[owner].append(name)
    fences = _fences(lab, requests, sources, horizon=horizon)
    for request, want in outlook.lacking:
        chosen = _choose(lab.policies, request, want, sources, waiting, fences, now)
        if chosen is not None:
            waiting[chosen.name].append(request.name)
    return {
        source.name: Share(claimed=tuple(claimed[source.name]), waiting=tuple(waiting[source.name]))
        for source in sources
    }


def _fences(
    lab: Lab, requests: tuple[Request, ...], sources: Sequence[Source], *, horizon: datetime
) -> Fences | None:
    """What is kept for leases that are booked for so late that no member starts for them yet."""
    if lab.bookings is None or not requests:
        return None
    later = tuple(booked for booked in lab.bookings.requests if booked.due > horizon)
    places = [
        PoolPlaces(
            name=source.name,
            member=source.member,
            room=None if source.room is None else source.starting + source.room,
        )
        for source in sources
    ]
    due = replace(lab, requests=requests, bookings=replace(lab.bookings, requests=later))
    booked = concerned(due)
    return Fences(due, places, booked) if booked else None


def next_booking(requests: Iterable[Request], lead: timedelta, *, now: datetime) -> datetime | None:
    """When the next booked lease is so close that its member must start booting."""
    starts = (times.shifted(request.due, -lead) for request in requests)
    return min((start for start in starts if start > now), default=None)


@dataclass(frozen=True, slots=True)
class _Outlook:
    """What free exporters will serve, and what is left over, in queue order."""

    served: tuple[tuple[str, str], ...]
    """Requests and the exporters they get."""

    lacking: tuple[tuple[Request, Want], ...]
    """Requests that are not served, with a want for each exporter they lack."""


def _outlook(lab: Lab, requests: tuple[Request, ...]) -> _Outlook:
    free = [_soon(o) for o in _concerned(lab.offers, requests) if o.free or o.settling]
    expected = Lab(offers=OfferIndex(free), requests=requests, policies=lab.policies)
    decisions = schedule(expected)
    served = tuple(
        (decision.request, grant.exporter)
        for decision in decisions
        if isinstance(decision, Assign)
        for grant in decision.grants
    )
    by_name, used = {request.name: request for request in requests}, {name for _, name in served}
    left = [offer for offer in free if offer.name not in used]
    unserved = (by_name[d.request] for d in decisions if isinstance(d, Wait | Refuse))
    return _Outlook(
        served=served,
        lacking=tuple((r, want) for r in unserved for want in _lacking(lab.policies, r, left)),
    )


def _lacking(policies: Policies, request: Request, left: list[Offer]) -> list[Want]:
    """A want for each exporter the request lacks; what it can use is removed from ``left``."""
    places = [want for want in request.wants for _ in range(want.count)]
    if len(places) == 1:
        return places
    names = [
        [offer.name for offer in left if _allowed(policies, request, want, offer)][: len(places)]
        for want in places
    ]
    filled = largest_matching(names)
    left[:] = [offer for offer in left if offer.name not in filled]
    return [want for number, want in enumerate(places) if number not in filled.values()]


def _concerned(offers: OfferIndex, requests: tuple[Request, ...]) -> Iterable[Offer]:
    """Enabled offers that some request could get. There may be thousands of others."""
    found: dict[str, Offer] = {}
    for matcher in {want.matcher for request in requests for want in request.wants}:
        if not matcher.unrestricted:
            found.update((offer.name, offer) for offer in offers.enabled(matcher))
    return found.values()


def _soon(offer: Offer) -> Offer:
    """An offer that is winding down counts as free: it will be sooner than any boot."""
    return offer if offer.free else replace(offer, idle=True)


def _choose(
    policies: Policies,
    request: Request,
    want: Want,
    sources: Sequence[Source],
    waiting: Mapping[str, Sequence[str]],
    fences: Fences | None,
    now: datetime,
) -> Source | None:
    def queued(source: Source) -> int:
        return len(waiting[source.name])

    found = [
        source
        for source in sources
        if request.due <= times.shifted(now, source.lead)
        and _allowed(policies, request, want, source.member)
        and (fences is None or not fences.over_pool(source.name, request, waiting=queued(source)))
    ]

    def preference(source: Source) -> tuple[bool, bool, str]:
        starting = queued(source) < source.starting
        room = source.room is None or queued(source) < source.starting + source.room
        return (not starting, not room, source.name)

    return min(found, key=preference, default=None)


def _allowed(policies: Policies, request: Request, want: Want, device: Device) -> bool:
    """Whether the device matches and the client of the request may have it."""
    if request.client_labels is None or want.matcher.unrestricted:
        return False
    return want.matcher.matches(device) and bool(
        access.approve(
            policies, client=request.client_labels, exporter=device, duration=request.duration
        )
    )
