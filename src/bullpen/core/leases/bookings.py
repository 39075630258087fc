"""What is kept for booked requests: exporters and places of pools, from their begin on.

A request that is booked for later needs an exporter then. A request that was made after it and
would still hold that exporter does not get it; a shorter one is fitted in before. Nothing is
kept for good: every pass chooses again, so a booking moves when its exporter is needed and
another one will do. Claims that wait choose their exporters themselves and name them.

A better right wins, as everywhere in the queue: a booking keeps nothing from requests with
a higher priority, and a booking with spot access nothing from regular ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime

from bullpen.api.kinds.exporterset import SET_UID
from bullpen.core.exporters.offers import NEVER, Offer, OfferIndex
from bullpen.core.leases import access
from bullpen.core.leases.requests import Kind, Lab, Request, Supply, Want
from bullpen.core.matcher import Device, Matcher
from bullpen.kit import times
from bullpen.kit.selectors import parse_labels

BOOKINGS_MAX = 256
"""Bookings that a pass looks at, the next ones first. Nothing is kept for later ones yet."""

MOVES_MAX = 8
"""Exporters from which bookings are tried to be moved for one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The time for which something is kept for a booking."""

    begin: datetime
    end: datetime

    def __str__(self) -> str:
        begin = f"from {times.text(self.begin)}"
        return f"{begin} on" if self.end == NEVER else f"{begin} to {times.text(self.end)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlaces:
    """The exporters that a pool could still create."""

    name: str
    member: Device
    room: int | None
    """How many; None for any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """An exporter that is kept for a booked request."""

    request: Request
    exporter: str
    fence: Fence


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choices:
    """The exporters that requests of one kind may have, last in turn first."""

    held: tuple[Offer, ...]
    """Those that a lease has which ends, or may be ended."""

    free: tuple[Offer, ...]


@dataclass(eq=False, slots=True)
class _Booking:
    """One exporter that a booked request needs."""

    request: Request
    want: Want
    fence: Fence
    choices: _Choices


class Fences:
    """Where the bookings of a lab are placed, and what that keeps from a request."""

    def __init__(self, lab: Lab, pools: Iterable[PoolPlaces], booked: Sequence[Request]) -> None:
        """``booked``: the bookings to place, as ``concerned`` has them."""
        assert lab.bookings is not None
        self._lab, self._now, self._ends = lab, lab.bookings.now, lab.bookings.ends
        self._pools = {pool.name: pool for pool in pools}
        self._placed: dict[str, list[_Booking]] = {}
        """By exporter."""

        self._in_pools: dict[str, list[_Booking]] = {}
        """By pool."""

        self._known: dict[tuple[Matcher, Kind | None], _Choices] = {}
        """By what is wanted, and by whom if policies make a difference."""

        for request in booked:
            self._place(request)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The exporters that are kept, for whom and for which time."""
        return tuple(
            Placement(request=booking.request, exporter=exporter, fence=booking.fence)
            for exporter, bookings in self._placed.items()
            for booking in bookings
        )

    def kept_from(self, request: Request) -> frozenset[str]:
        """The exporters that the request must not get."""
        end = ends_at(request, self._now)
        return frozenset(
            name
            for name, bookings in self._placed.items()
            if any(self._fences_off(booking, request, end, name) for booking in bookings)
        )

    def moved_off(self, exporter: str, request: Request, *, taken: Set[str]) -> bool:
        """Whether the exporter is the request's after other exporters were found for bookings."""
        end = ends_at(request, self._now)
        placed = self._placed.get(exporter, [])
        ahead = [b for b in placed if self._fences_off(b, request, end, exporter)]
        moves: list[tuple[_Booking, str]] = []
        for booking in ahead:
            used = {exporter, *taken, *(name for _, name in moves)}
            found = self._vacant(booking, (*booking.choices.held, *booking.choices.free), used)
            if not found:
                return False
            moves.append((booking, found))
        for booking, name in moves:
            placed.remove(booking)
            self._put(booking, name)
        return True

    def over(self, exporters: Iterable[str], request: Request) -> Fence | None:
        """What keeps the request from all of these exporters and from every pool.

        Of several fences it is the first to end; None if no booking is the reason why it waits.
        """
        able = [pool for pool in self._pools.values() if self._makes(pool, request, request.wants)]
        if any(self._has_place(pool, request) for pool in able):
            return None
        over_pools = (self.over_pool(pool.name, request) for pool in able)
        found = (self._over_exporters(exporters, request), *over_pools)
        return _first_to_end(fence for fence in found if fence is not None)

    def _over_exporters(self, exporters: Iterable[str], request: Request) -> Fence | None:
        end = ends_at(request, self._now)
        found = (
            booking.fence
            for name in exporters
            for booking in self._placed.get(name, ())
            if self._fences_off(booking, request, end, name)
        )
        return _first_to_end(found)

    def over_pool(self, pool: str, request: Request, *, waiting: int = 0) -> Fence | None:
        """The fence that keeps the last places of a pool from the request; None if one is left.

        ``waiting``: how many places are needed by requests in front.
        """
        places = self._pools[pool]
        ahead = self._ahead_in(places, request)
        if places.room is None or len(ahead) < places.room - waiting:
            return None
        return _first_to_end(ahead)

    def _has_place(self, pool: PoolPlaces, request: Request) -> bool:
        return pool.room is None or len(self._ahead_in(pool, request)) < pool.room

    def _ahead_in(self, pool: PoolPlaces, request: Request) -> list[Fence]:
        """The places of the pool that are kept from the request."""
        end = ends_at(request, self._now)
        return [
            booking.fence
            for booking in self._in_pools.get(pool.name, ())
            if self._outranks(booking, request, end, pool.member)
        ]

    def _fences_off(
        self, booking: _Booking, request: Request, end: datetime, exporter: str
    ) -> bool:
        offer = self._lab.offers.get(exporter)
        return offer is not None and self._outranks(booking, request, end, offer)

    def _outranks(self, booking: _Booking, request: Request, end: datetime, device: Device) -> bool:
        """Whether the booking goes first and begins before the request would be over.

        What a claim reserved is kept from others, not from its own leases.
        """
        own = bool(request.claim) and booking.request.claim == request.claim
        if own or booking.fence.begin >= end:
            return False
        if self._lab.turn(booking.request) >= self._lab.turn(request):
            return False
        if not self._lab.policies.enforced:
            return True
        mine, theirs = (_right(self._lab, x, device) for x in (booking.request, request))
        return mine is not None and theirs is not None and mine <= theirs

    def _place(self, request: Request) -> None:
        assert request.begin is not None
        end = NEVER if request.duration is None else times.shifted(request.begin, request.duration)
        fence = Fence(begin=request.begin, end=end)
        for want in request.wants:
            choices = self._choices(request, want)
            for _ in range(want.count):
                self._choose(_Booking(request, want, fence, choices))

    def _choose(self, booking: _Booking) -> None:
        """Place a booking where it keeps least from others.

        That is a pool without a limit, an exporter that is held until then, a place of a pool, and
        last an exporter that is free now. A booking that finds nothing keeps nothing.
        """
        pools = [
            pool
            for pool in self._pools.values()
            if self._makes(pool, booking.request, (booking.want,))
        ]
        if any(pool.room is None for pool in pools):
            return
        held = self._vacant(booking, booking.choices.held)
        if held:
            self._put(booking, held)
            return
        for pool in pools:
            others = self._in_pools.get(pool.name, [])
            if sum(_overlap(other, booking) for other in others) < (pool.room or 0):
                self._in_pools.setdefault(pool.name, []).append(booking)
                return
        found = self._vacant(booking, booking.choices.free)
        if found:
            self._put(booking, found)

    def _put(self, booking: _Booking, exporter: str) -> None:
        self._placed.setdefault(exporter, []).append(booking)

    def _vacant(
        self, booking: _Booking, offers: Iterable[Offer], besides: Set[str] = frozenset()
    ) -> str:
        """One of these exporters that no other booking needs at the time; empty if none is."""
        for offer in offers:
            if offer.name in besides or (offer.holder and not self._is_freed(offer, booking)):
                continue
            others = self._placed.get(offer.name)
            if not others or not any(_overlap(other, booking) for other in others):
                return offer.name
        return ""

    def _choices(self, request: Request, want: Want) -> _Choices:
        """The exporters of a want that the client of the request may have."""
        if request.client_labels is None or want.matcher.unrestricted:
            return _Choices(held=(), free=())
        enforced = self._lab.policies.enforced
        key = (want.matcher, request.kind if enforced else None)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._choices_of(request, want, enforced=enforced)
        return found

    def _choices_of(self, request: Request, want: Want, *, enforced: bool) -> _Choices:
        offers = [
            offer
            for offer in self._lab.offers.enabled(want.matcher)
            if _counts(offer) and (not enforced or _right(self._lab, request, offer))
        ]
        offers.reverse()
        ends = self._ends
        return _Choices(
            held=tuple(o for o in offers if o.holder and (o.holder in ends or o.holder_spot)),
            free=tuple(o for o in offers if not o.holder),
        )

    def _is_freed(self, offer: Offer, booking: _Booking) -> bool:
        """Whether the lease that has the exporter is over at the begin, or can be ended then."""
        if self._ends.get(offer.holder, NEVER) <= booking.fence.begin:
            return True
        right = _right(self._lab, booking.request, offer) if offer.holder_spot else None
        return right is not None and not right[0]

    def _makes(self, pool: PoolPlaces, request: Request, wants: Iterable[Want]) -> bool:
        """Whether a new member of the pool would serve one of the wants."""
        wanted = any(want.matcher.matches(pool.member) for want in wants)
        return wanted and _right(self._lab, request, pool.member) is not None


def fences(lab: Lab) -> Fences | None:
    """The fences that requests of the lab must respect; None if nothing is booked in their time."""
    booked = concerned(lab)
    if not booked:
        return None
    return Fences(lab, (pool_places(lab.offers, supply) for supply in lab.supplies), booked)


def placements(lab: Lab) -> tuple[Placement, ...]:
    """Where all bookings of the lab are placed, the next ones first."""
    if lab.bookings is None:
        return ()
    booked = sorted(lab.bookings.requests, key=lambda booked: _order(lab, booked))[:BOOKINGS_MAX]
    places = (pool_places(lab.offers, supply) for supply in lab.supplies)
    return Fences(lab, places, booked).placements


def hindered(lab: Lab, until: Mapping[str, datetime | None]) -> Placement | None:
    """A booking that would lose its exporter if leases ended later; the first to begin.

    ``until``: the new ends by the names of the leases, None for no end. A booking that finds
    another exporter is not hindered.
    """
    if lab.bookings is None:
        return None
    ends = {name: end for name, end in lab.bookings.ends.items() if name not in until}
    ends |= {name: end for name, end in until.items() if end is not None}
    later = replace(lab, bookings=replace(lab.bookings, ends=ends))
    kept = Counter(placed.request.name for placed in placements(later))
    lost = []
    for placed in placements(lab):
        kept[placed.request.name] -= 1
        if kept[placed.request.name] < 0:
            lost.append(placed)
    return min(lost, key=lambda x: (x.fence.begin, x.exporter), default=None)


def ends_at(request: Request, now: datetime) -> datetime:
    """When the request would be over if it were served now."""
    return NEVER if request.duration is None else times.shifted(now, request.duration)


def concerned(lab: Lab) -> Sequence[Request]:
    """The bookings that begin while a request would run, and those that compete with them."""
    if lab.bookings is None or not lab.requests:
        return ()
    now = lab.bookings.now
    last = max(ends_at(request, now) for request in lab.requests)
    soon = [booked for booked in lab.bookings.requests if booked.begin and booked.begin < last]
    if not soon:
        return ()
    soon.sort(key=lambda booked: _order(lab, booked))
    matchers = {want.matcher for request in lab.requests for want in request.wants}
    frontier, rest, found = list(matchers), soon[:BOOKINGS_MAX], []
    while frontier:
        near = [booked for booked in rest if _may_share(booked, frontier)]
        names = {booked.name for booked in near}
        rest = [booked for booked in rest if booked.name not in names]
        found += near
        frontier = [want.matcher for booked in near for want in booked.wants]
    return sorted(found, key=lambda booked: _order(lab, booked))


def _order(lab: Lab, booked: Request) -> tuple[bool, datetime, tuple[int, datetime, int, str]]:
    """Sort key of bookings: those that name their exporters can be placed nowhere else."""
    assert booked.begin is not None
    named = all(want.matcher.exporter for want in booked.wants)
    return (not named, booked.begin, lab.turn(booked))


def _may_share(booked: Request, matchers: Sequence[Matcher]) -> bool:
    return any(not want.matcher.disjoint(other) for want in booked.wants for other in matchers)


def pool_places(offers: OfferIndex, supply: Supply) -> PoolPlaces:
    """What a pool can add to its members that are online."""
    room = supply.ceiling
    uid = supply.member.labels.get(SET_UID)
    if room is not None and uid is not None:
        members = Matcher(selector=parse_labels(f"{SET_UID}={uid}"))
        online = sum(_counts(offer) for offer in offers.enabled(members))
        room = max(0, room - online)
    return PoolPlaces(name=supply.name, member=supply.member, room=room)


def _counts(offer: Offer) -> bool:
    """Whether a booking can count on the exporter, or on the member that replaces it."""
    return offer.online and (bool(offer.holder) or not offer.stuck)


def _right(lab: Lab, request: Request, device: Device) -> tuple[bool, int] | None:
    """Sort key of the right to a device, the best first; None without a right."""
    if request.client_labels is None:
        return None
    approval = access.approve(
        lab.policies, client=request.client_labels, exporter=device, duration=request.duration
    )
    return None if approval is None else (approval.spot, -approval.priority)


def _first_to_end(fences: Iterable[Fence]) -> Fence | None:
    return min(fences, key=lambda fence: (fence.end, fence.begin), default=None)


def _overlap(one: _Booking, other: _Booking) -> bool:
    return one.fence.begin < other.fence.end and other.fence.begin < one.fence.end
