"""The lab, one index per namespace: exporters and leases as every decision looks at them.

The scheduler, the sizing of pools and the messages of waiting leases all read this index,
and only ``controllers.labs`` writes it. It decides nothing. A pass looks at what changed
since the last pass and at what time has made due, never at everything: a lab has thousands
of leases of which one is released at a time.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease
from bullpen.core.exporters import presence
from bullpen.core.exporters.offers import NEVER, Offer, OfferIndex
from bullpen.core.leases import lifecycle
from bullpen.core.leases.fair_share import FairShare, Spell
from bullpen.core.leases.lease_group import LeaseGroups
from bullpen.core.leases.quotas import Usage
from bullpen.core.leases.requests import Bookings, RequestIndex
from bullpen.core.matcher import Matcher, matcher_of
from bullpen.core.pools import members
from bullpen.kit import times


@dataclass(slots=True)
class News:
    """Names of the objects that changed since the last pass."""

    leases: set[str] = field(default_factory=set)
    exporters: set[str] = field(default_factory=set)


class LabIndex:
    """The index of one namespace."""

    def __init__(self, unmatched_wait: timedelta = timedelta(0)) -> None:
        """``unmatched_wait``: how long a lease waits for something that matches it."""
        self._unmatched_wait = unmatched_wait
        self.open: dict[str, Lease] = {}
        self.waiting: dict[str, Lease] = {}
        """Open leases whose own status names no exporter, including booked ones."""

        self.ended: dict[str, Lease] = {}
        """Ended leases that are not labelled yet; the views drop them when they are."""

        self.groups = LeaseGroups()
        """Open leases that are assigned together."""

        self.offers = OfferIndex()
        self.fair_share = FairShare()
        """What the clients have used of late."""

        self.requests = RequestIndex()
        """Waiting leases whose begin time has come, as the last pass saw them."""

        self.arrived: dict[str, int] = {}
        """The order of arrival of leases created in the same second."""

        self.ends: dict[str, datetime] = {}
        """By the name of a lease that has an exporter, when it ends, if it does."""

        self.version = 0
        """Incremented with every change that affects the demand for pools."""

        self._news = News()
        self._wanted: Counter[Matcher] = Counter()
        self._users: dict[str, set[str]] = defaultdict(set)
        """By exporter, the open leases whose status names it."""

        self._held: dict[str, tuple[str, str]] = {}
        """By exporter, name and uid of the lease in its leaseRef."""

        self._holding: dict[str, str] = {}
        """By the name of that lease, the exporter."""

        self._held_uids: dict[str, str] = {}
        """By the uid of that lease, the exporter."""

        self._agenda: list[tuple[datetime, str]] = []
        """When time alone may change a lease; may contain outdated times."""

        self._taken_at = times.EARLIEST
        """The wall time of the last pass."""

        self.holding_times = HoldingTimes()

        self._counts: Counter[tuple[str, bool]] = Counter()
        """Open leases by client and whether they have an exporter."""

        self._expected: dict[str, str] = {}
        """Names of leases that are being created, and their clients."""

    # Read by lease passes

    def take(self, now: datetime, *, steady: timedelta) -> News:
        """The changes to process; a pass that cannot finish returns them with ``give_back``.

        ``steady`` is ``now`` in steady time. After the wall clock was set back, every open lease
        counts as changed: a moment that had come may lie in the future again.
        """
        if now < self._taken_at:
            self._news.leases.update(self.open)
            self._agenda = [(at, name) for name, x in self.open.items() for at in self._moments(x)]
            heapq.heapify(self._agenda)
        self._taken_at = now
        news, self._news = self._news, News()
        while self._agenda and self._agenda[0][0] <= now:
            news.leases.add(heapq.heappop(self._agenda)[1])
        for lease in self.select(news.leases):
            self.holding_times.note(lease, now=now, steady=steady)
        news.leases |= self.holding_times.take_due(steady)
        return news

    def give_back(self, news: News) -> None:
        self._news.leases |= news.leases
        self._news.exporters |= news.exporters

    def select(self, names: Iterable[str]) -> list[Lease]:
        """Those of ``names`` that are open leases, in name order."""
        return [self.open[name] for name in sorted(names) if name in self.open]

    def next_moment(self) -> datetime | None:
        """The next moment at which time alone changes something about an open lease."""
        while self._agenda:
            moment, name = self._agenda[0]
            lease = self.open.get(name)
            if lease is not None and moment in self._moments(lease):
                return moment
            heapq.heappop(self._agenda)
        return None

    def taken_by(self, lease: str) -> str:
        """The exporter whose leaseRef names the lease; empty if there is none."""
        return self._holding.get(lease, "")

    # Read by pool sizing

    @property
    def wanted(self) -> Iterable[Matcher]:
        """What waiting leases ask for, without duplicates."""
        return self._wanted

    def unserved(self) -> list[Lease]:
        """Waiting leases that no exporter refers to.

        An assignment is two writes. The exporter's comes first and is decisive, so that no lease is
        seen both to have an exporter and to wait for one.
        """
        held = self._held_uids
        return [lease for lease in self.waiting.values() if lease.metadata.uid not in held]

    # Read by quotas

    def usage(self, client: str) -> Usage:
        """Open leases of a client and of the namespace; leases being created count as waiting."""
        coming = sum(1 for expected in self._expected.values() if expected == client)
        return Usage(
            active=self._counts[client, True],
            waiting=self._counts[client, False] + coming,
            namespace=len(self.open) + len(self._expected),
        )

    def active_by_client(self) -> Counter[str]:
        """By client, the open leases that have an exporter or that one refers to."""
        held = self._held_uids
        return Counter(
            lease.spec.client_ref.name
            for lease in self.open.values()
            if lease.status.exporter_ref is not None or lease.metadata.uid in held
        )

    def expect(self, client: str, name: str) -> None:
        """Count a lease that is being created, until ``settle`` is called."""
        self._expected[name] = client

    def settle(self, name: str) -> None:
        """An expected lease has appeared, or will not be created."""
        self._expected.pop(name, None)

    # Written by ``controllers.labs``

    def put_lease(
        self,
        name: str,
        old: Lease | None,
        new: Lease | None,
        *,
        late: bool,
        cost: Callable[[str], float] = lambda exporter: 1.0,
    ) -> None:
        """A lease is now ``new``; None if deleted. ``late``: it appeared after the start.

        ``cost``: what an hour of an exporter counts for in the fair share.
        """
        self._count_use(name, old, new, cost)
        if new is None or new.status.ended:
            self.arrived.pop(name, None)
        elif old is None and late:
            self.arrived.setdefault(name, int(new.metadata.resource_version or 0))
        for value in (old, new):
            if value is not None and value.status.exporter_ref is not None:
                self._news.exporters.add(value.status.exporter_ref.name)
        over = new is not None and new.status.ended
        if new is not None and over:
            self.ended[name] = new
        else:
            self.ended.pop(name, None)
        self._put_open(name, None if over else new)

    def _count_use(
        self, name: str, old: Lease | None, new: Lease | None, cost: Callable[[str], float]
    ) -> None:
        """Count what a client has used when its lease gets or loses an exporter."""
        before, after = held_by(old), held_by(new)
        if before == after:
            return
        if before is not None:
            ended = new.status.end_time if new is not None else None
            self.fair_share.let_go(before[0], name, now=ended or self._taken_at)
        if after is not None:
            client, exporter, begin = after
            self.fair_share.hold(client, name, Spell(begin=begin, cost=cost(exporter)))

    def put_exporter(self, name: str, exporter: Exporter | None, *, connected: bool) -> None:
        """An exporter has changed; None if it was deleted."""
        self._hold(name, exporter)
        self._news.exporters.add(name)
        self._news.leases |= self._users[name]
        self._offer(name, exporter, connected=connected)

    def _hold(self, name: str, exporter: Exporter | None) -> None:
        """Record which lease an exporter's leaseRef names."""
        lease, uid = self._held.pop(name, ("", ""))
        if self._holding.get(lease) == name:
            del self._holding[lease]
        if self._held_uids.get(uid) == name:
            del self._held_uids[uid]
        if exporter is None or not holder_of(exporter):
            return
        lease, uid = holder_of(exporter), exporter.status.lease_uid
        self._held[name] = (lease, uid)
        self._holding[lease] = name
        self._held_uids[uid] = name

    def refresh_offer(self, exporter: Exporter, *, connected: bool) -> None:
        """Update an offer that may have changed although the exporter did not."""
        self._offer(exporter.metadata.name, exporter, connected=connected)

    def rights_changed(self, client: str | None = None) -> None:
        """The rights of leases may have changed: of one client, or of all."""
        self.version += 1
        if client is not None:
            mine = (n for n, x in self.open.items() if x.spec.client_ref.name == client)
            self._news.leases.update(mine)

    def _offer(self, name: str, exporter: Exporter | None, *, connected: bool) -> None:
        before = self.offers.get(name)
        if exporter is None:
            self.offers.remove(name)
            after = None
        else:
            after = self._offer_of(exporter, connected=connected)
            if after == before:
                return
            self.offers.put(after)
        self.version += 1
        self.requests.offered(before, after)

    def _offer_of(self, exporter: Exporter, *, connected: bool) -> Offer:
        """An exporter as the scheduler sees it; a spent single-use exporter is never free."""
        holder = holder_of(exporter)
        held = self.open.get(holder)
        spent = members.spent(exporter)
        leaving = exporter.metadata.deletion_timestamp is not None
        return Offer(
            name=exporter.metadata.name,
            labels=exporter.metadata.labels,
            enabled=exporter.spec.enabled,
            # The condition may be left over from before a restart; the connection cannot be.
            online=connected and presence.registered(exporter) and not leaving,
            idle=presence.idle(exporter) and not spent,
            holder=holder,
            holder_spot=held is not None and held.status.spot_access,
            stuck=presence.stuck(exporter) or spent,
            ready_at=members.ready_at(exporter) or NEVER,
        )

    def _put_open(self, name: str, lease: Lease | None) -> None:
        self._expected.pop(name, None)
        if lease is None:
            self.holding_times.forget(name)
        old = self.open.pop(name, None)
        self._count(old, -1)
        self._count(lease, 1)
        if old is not None and old.status.exporter_ref is not None:
            self._users[old.status.exporter_ref.name].discard(name)
        waited = self.waiting.pop(name, None)
        for affected in (name, *self.groups.put(name, old, lease)):
            self._news.leases.add(affected)
            if affected in self._holding:
                self._news.exporters.add(self._holding[affected])
        self._put_end(name, lease)
        if lease is not None:
            self.open[name] = lease
            if lease.status.exporter_ref is None:
                self.waiting[name] = lease
            else:
                self._users[lease.status.exporter_ref.name].add(name)
            known = set(self._moments(old)) if old is not None else set()
            for moment in self._moments(lease):
                if moment not in known:
                    heapq.heappush(self._agenda, (moment, name))
        self._count_wanted(waited, self.waiting.get(name))

    def _put_end(self, name: str, lease: Lease | None) -> None:
        """Record when a lease frees its exporter, which bookings depend on."""
        held = lease.status.exporter_ref if lease is not None else None
        end = lifecycle.expires_at(lease) if lease is not None and held is not None else None
        if end == self.ends.get(name):
            return
        if end is None:
            del self.ends[name]
        else:
            self.ends[name] = end
        offer = self.offers.get(held.name) if held is not None else None
        if offer is not None:
            self.requests.ends_changed(offer)

    def bookings(self, now: datetime) -> Bookings | None:
        """What is booked for later; None if nothing is."""
        booked = self.requests.booked
        return Bookings(requests=booked, ends=self.ends, now=now) if booked else None

    def scheduled(self, now: datetime) -> Bookings | None:
        """What is booked by a begin time; None if nothing is."""
        booked = self.requests.scheduled
        return Bookings(requests=booked, ends=self.ends, now=now) if booked else None

    def _moments(self, lease: Lease) -> list[datetime]:
        """When time alone may change something about an open lease."""
        begins = unmatched = None
        if lease.status.exporter_ref is None:
            begins = lifecycle.begins_at(lease.spec)
            if self._unmatched_wait:
                unmatched = lifecycle.unmatched_until(lease, self._unmatched_wait)
        moments = (begins, unmatched, lifecycle.expires_at(lease), lifecycle.idle_at(lease))
        return [moment for moment in moments if moment is not None]

    def _count(self, lease: Lease | None, step: int) -> None:
        if lease is None:
            return
        kind = (lease.spec.client_ref.name, lease.status.exporter_ref is not None)
        self._counts[kind] += step
        if not self._counts[kind]:
            del self._counts[kind]

    def _count_wanted(self, before: Lease | None, after: Lease | None) -> None:
        if before is not None and after is not None and before.spec is after.spec:
            return
        self.version += 1
        gone, come = wanted_by(before), wanted_by(after)
        if gone == come:
            return
        if come is not None:
            self._wanted[come] += 1
        if gone is not None:
            self._wanted[gone] -= 1
            if not self._wanted[gone]:
                del self._wanted[gone]


def is_waiting(lease: Lease) -> bool:
    return not lease.status.ended and lease.status.exporter_ref is None


def wanted_by(lease: Lease | None) -> Matcher | None:
    """What a lease asks for while it waits; None if it does not wait."""
    return None if lease is None or not is_waiting(lease) else matcher_of(lease.spec)


def held_by(lease: Lease | None) -> tuple[str, str, datetime] | None:
    """The client that has an exporter by the lease, the exporter, and since when; None if none."""
    if lease is None or lease.status.ended:
        return None
    held, begin = lease.status.exporter_ref, lease.status.begin_time
    if held is None or begin is None:
        return None
    return lifecycle.holder(lease), held.name, begin


def holder_of(exporter: Exporter) -> str:
    """Name of the lease that holds the exporter; empty if none does."""
    ref = exporter.status.lease_ref
    return ref.name if ref else ""


class HoldingTimes:
    """How long active leases have had their exporters in steady time, and which are over by it.

    The end of a lease by the wall clock moves away when that clock is set back.
    """

    def __init__(self) -> None:
        self._begun: dict[str, tuple[datetime, timedelta]] = {}
        """By name, the begin of the lease as its status has it and in steady time."""

        self._due: dict[str, timedelta] = {}
        self._heap: list[tuple[timedelta, str]] = []
        """When each lease is over; may contain outdated entries, which ``_due`` tells apart."""

    def note(self, lease: Lease, *, now: datetime, steady: timedelta) -> None:
        """A lease is open, or has changed."""
        name, begin = lease.metadata.name, lease.status.begin_time
        if lease.status.exporter_ref is None or begin is None:
            self.forget(name)
            return
        known = self._begun.get(name)
        if known is None or known[0] != begin:
            # A begin in the future was written before the clock was set back.
            self._begun[name] = begin, steady - max(now - begin, timedelta(0))
        most = lifecycle.holds_at_most(lease)
        if most is None:
            self._due.pop(name, None)
            return
        due = self._begun[name][1] + most
        if self._due.get(name) != due:
            self._due[name] = due
            heapq.heappush(self._heap, (due, name))

    def forget(self, name: str) -> None:
        """The lease has ended, or was deleted."""
        self._begun.pop(name, None)
        self._due.pop(name, None)

    def held(self, name: str, *, steady: timedelta) -> timedelta | None:
        """How long the lease has had its exporter; None if it has none."""
        begun = self._begun.get(name)
        return steady - begun[1] if begun is not None else None

    def take_due(self, steady: timedelta) -> set[str]:
        """The leases that became over since this was last called."""
        found = set()
        while (due := self.next_due()) is not None and due <= steady:
            found.add(heapq.heappop(self._heap)[1])
        return found

    def next_due(self) -> timedelta | None:
        """The steady time at which the next lease is over."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
