"""What the scheduler is asked, what it answers, and which requests wait for an answer.

A request asks for one or several exporters and is served completely or not at all. A waiting
lease is a request with one want for one exporter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from bullpen.core.exporters.offers import Offer, OfferIndex
from bullpen.core.leases import access, fair_share
from bullpen.core.leases.access import Approval, Policies
from bullpen.core.leases.fair_share import NO_HANDICAP
from bullpen.core.matcher import Device, Matcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """One or several exporters of the same description."""

    matcher: Matcher
    name: str = ""
    """Identifies the want within its request; empty if the request has no other."""

    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What requests have in common that the same exporters can serve. A key of indexes."""

    wants: tuple[Want, ...]
    allow_disabled: bool
    duration: timedelta | None
    client_labels: frozenset[tuple[str, str]] | None

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Computed once: every change of a request looks it up in several indexes."""
        return hash((self.wants, self.allow_disabled, self.duration, self.client_labels))


@dataclass(frozen=True, kw_only=True)
class Request:
    """The part of a waiting lease that the scheduler looks at."""

    name: str
    client: str
    client_labels: Mapping[str, str] | None
    """None when the Client object does not exist."""

    wants: tuple[Want, ...]
    """Earlier wants have the first choice of exporters."""

    since: datetime
    """When it was made, which determines its place in the queue."""

    sequence: int = 0
    """Order of arrival among requests created in the same second."""

    allow_disabled: bool = False
    """Whether a want for an exporter by name may get it although it is disabled."""

    duration: timedelta | None = None
    begin: datetime | None = None
    """The time it is booked for; None for as soon as possible."""

    patient: bool = False
    """Whether it waits although nothing matches: its exporter or pool may be about to appear."""

    priority: int = 0
    """Of requests with equal rights, those of a higher one go first."""

    claim: str = ""
    """The uid of the claim that it serves; empty for a lease of its own."""

    @property
    def due(self) -> datetime:
        """When it needs its exporters."""
        return self.since if self.begin is None else max(self.begin, self.since)

    @cached_property
    def size(self) -> int:
        """The number of exporters it needs."""
        return sum(want.count for want in self.wants)

    @cached_property
    def kind(self) -> Kind:
        client = self.client_labels
        return Kind(
            wants=self.wants,
            allow_disabled=self.allow_disabled,
            duration=self.duration,
            client_labels=None if client is None else frozenset(client.items()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """A pool that could create exporters, and its message about when."""

    name: str
    member: Device
    message: str = ""
    ceiling: int | None = field(default=None, compare=False)
    """How many members it may have; None for no limit. It matters to bookings and claims."""

    boot: timedelta = field(default=timedelta(0), compare=False)
    """How long a new member takes to start; zero if that is not known."""

    provider: str = field(default="", compare=False)
    """The ProviderConfig on which it starts members, if it is one with a limit."""

    slots: int | None = field(default=None, compare=False)
    """How many instances that provider can still make, for all its pools; None for no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookings:
    """Requests for later, and what is needed to tell what they can have then."""

    requests: tuple[Request, ...]
    ends: Mapping[str, datetime]
    """By the name of an active lease, when it ends; leases without an end are absent."""

    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Everything the scheduler may look at, in one namespace."""

    offers: OfferIndex
    requests: tuple[Request, ...]
    policies: Policies = access.OPEN
    supplies: tuple[Supply, ...] = field(default=())
    bookings: Bookings | None = None
    """None if nothing is booked."""

    handicaps: Mapping[str, timedelta] = field(default_factory=dict)
    """By client, by how much recent use delays its requests in the queue; absent for nothing."""

    def turn(self, request: Request) -> tuple[int, datetime, int, str]:
        """Sort key of requests with equal rights: priority, then age less handicap."""
        since = fair_share.delayed(request.since, self.handicaps.get(request.client, NO_HANDICAP))
        return (-request.priority, since, request.sequence, request.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One exporter of an assignment, and the approval that allows it."""

    exporter: str
    approval: Approval
    want: str = ""
    """The name of the want it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Everything the request needs, in the order of its wants."""

    request: str
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """End a spot lease so that its exporter can go to the request ``by``."""

    lease: str
    exporter: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    request: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """End a request that can never be served."""

    request: str
    type: str
    reason: str
    message: str


Decision = Assign | Evict | Wait | Refuse


def request_of(decision: Decision) -> str:
    """The name of the request a decision is about."""
    return decision.by if isinstance(decision, Evict) else decision.request


class RequestIndex:
    """Waiting requests of a namespace, grouped, to find the requests a change can affect.

    Deciding over all waiting requests makes the queue fair, but would make a long queue slow, since
    most changes affect few requests. Requests that ask for the same thing form a group. A decision
    about a group holds until something changes for this group, or for a group that may share an
    exporter with it.

    A new request that finds a free exporter affects only itself: every other request has been
    decided, so an exporter that is still free is of no use to them. This holds only while no
    request needs several exporters, because a free exporter may be kept for such a request.
    """

    def __init__(self) -> None:
        self._groups: dict[Kind, _Group] = {}
        self._by_name: dict[str, _Group] = {}
        self._changed: dict[Kind, _Group] = {}
        """Groups to decide about; may include groups that have become empty."""

        self._new: dict[str, Request] = {}
        """Requests that have not been decided yet."""

        self._several = 0
        """The number of requests for several exporters."""

        self._booked: dict[str, Request] = {}
        """Requests whose begin time has not come."""

        self._reserved: dict[str, Request] = {}
        """What claims that wait are to get, by claim."""

        self._index = _GroupIndex()
        self._policies = access.OPEN
        self._supplies: tuple[Supply, ...] = ()

    def put(self, request: Request) -> None:
        """Add a request, or change what a known request waits for."""
        group = self._by_name.get(request.name)
        if group is not None and group.requests[request.name] == request:
            return
        new = group is None or request.name in self._new
        self.remove(request.name)
        kind = request.kind
        group = self._groups.get(kind)
        if group is None:
            group = self._groups[kind] = _Group(request)
            self._index.add(group)
        group.requests[request.name] = request
        self._several += request.size > 1
        self._by_name[request.name] = group
        if new:
            self._new[request.name] = request
        else:
            self._changed[kind] = group

    def book(self, request: Request) -> None:
        """Add a request for later, or change it. Requests that wait are not affected by it."""
        if self._booked.get(request.name) != request:
            self.remove(request.name)
            self._booked[request.name] = request

    def reserve(self, reserved: Iterable[Request]) -> bool:
        """Set what claims that wait are to get; returns whether requests must be decided again."""
        before, self._reserved = self._reserved, {request.claim: request for request in reserved}
        gone = [_Group(old) for old in before.values() if self._reserved.get(old.claim) != old]
        self._mark(g for g in self._groups.values() if any(old.may_share(g) for old in gone))
        return bool(gone)

    @property
    def booked(self) -> tuple[Request, ...]:
        """What is kept from others: for begin times, and for claims that wait."""
        return (*self._booked.values(), *self._reserved.values())

    @property
    def scheduled(self) -> tuple[Request, ...]:
        """Requests whose begin time has not come."""
        return tuple(self._booked.values())

    def ends_changed(self, offer: Offer) -> None:
        """The lease that has the exporter ends at another time, so bookings may move."""
        if self._booked or self._reserved:
            self._mark(g for g in self._index.near(offer) if g.matches(offer))

    def remove(self, name: str) -> None:
        booked = self._booked.pop(name, None)
        if booked is not None:
            gone = _Group(booked)
            self._mark(group for group in self._groups.values() if gone.may_share(group))
        group = self._by_name.pop(name, None)
        if group is None:
            return
        self._several -= group.requests.pop(name).size > 1
        if self._new.pop(name, None) is None:
            self._changed[group.kind] = group
        if not group.requests:
            del self._groups[group.kind]
            self._index.remove(group)

    def offered(self, old: Offer | None, new: Offer | None) -> None:
        """An exporter changed from ``old`` to ``new``; None stands for no exporter."""
        if old == new:
            return
        for offer in (old, new):
            if offer is not None:
                self._mark(g for g in self._index.near(offer) if g.matches(offer))

    def under(self, policies: Policies, supplies: tuple[Supply, ...]) -> None:
        """Set the current access policies, and the exporters that pools could create."""
        if policies != self._policies:
            self._policies = policies
            self.everything()
        if supplies != self._supplies:
            changed = [s for s in supplies if s not in self._supplies]
            changed += [s for s in self._supplies if s not in supplies]
            self._supplies = supplies
            groups = self._groups.values()
            self._mark(g for g in groups if any(g.matches(s.member) for s in changed))

    def everything(self) -> None:
        """Mark all requests for a decision, because earlier decisions were not carried out."""
        self._mark(self._groups.values())

    def newcomers(self) -> tuple[Request, ...]:
        """New requests, if nothing else has changed and each needs one exporter.

        A new request with a free exporter may be assigned at once; the caller reports this with
        ``served``. For the others, ``take`` returns all requests they affect.
        """
        return () if self._changed or self._several else tuple(self._new.values())

    def served(self, names: Iterable[str]) -> None:
        """Remove new requests that are assigned at once and no longer wait.

        If an assignment fails, the caller must ``put`` the request again.
        """
        for name in names:
            self.remove(name)

    def take(self) -> tuple[Request, ...]:
        """All requests the changes can affect; a pass that cannot finish calls ``everything``."""
        self._mark(self._by_name[name] for name in self._new)
        self._new = {}
        found = self._reached()
        self._changed = {}
        return tuple(request for group in found for request in group.requests.values())

    def _mark(self, groups: Iterable[_Group]) -> None:
        self._changed.update((group.kind, group) for group in groups)

    def _reached(self) -> list[_Group]:
        """The changed groups and, transitively, the groups that may share an exporter with them."""
        if not self._changed:
            return []
        rest = {kind: group for kind, group in self._groups.items() if kind not in self._changed}
        found = list(self._changed.values())
        for group in found:  # grows while it is walked
            near = [kind for kind, other in rest.items() if group.may_share(other)]
            found += (rest.pop(kind) for kind in near)
        return found

    def __len__(self) -> int:
        return len(self._by_name)


class _Group:
    """Requests that the same exporters can serve."""

    def __init__(self, first: Request) -> None:
        self.kind = first.kind
        self.requests: dict[str, Request] = {}
        self._matchers = tuple(want.matcher for want in first.wants)

    @property
    def common(self) -> set[str | tuple[str, str] | None]:
        """For each want a property of every wanted offer: its name, or one label; None if none."""
        return {m.exporter or next(iter(m.required_labels.items()), None) for m in self._matchers}

    def matches(self, device: Device) -> bool:
        return any(matcher.matches(device) for matcher in self._matchers)

    def may_share(self, other: _Group) -> bool:
        """False only if no exporter at all could serve both groups."""
        for mine in self._matchers:
            for its in other._matchers:
                if not mine.disjoint(its):
                    return True
        return False


class _GroupIndex:
    """Groups by a property that their wanted offers share, so that a change visits few groups."""

    def __init__(self) -> None:
        self._groups: dict[object, dict[Kind, _Group]] = {}

    def add(self, group: _Group) -> None:
        for common in group.common:
            self._groups.setdefault(common, {})[group.kind] = group

    def remove(self, group: _Group) -> None:
        for common in group.common:
            groups = self._groups[common]
            del groups[group.kind]
            if not groups:
                del self._groups[common]

    def near(self, offer: Offer) -> Iterator[_Group]:
        """A superset of the groups that may want the offer."""
        for common in (None, offer.name, *offer.labels.items()):
            yield from self._groups.get(common, {}).values()
