"""Open leases of every namespace, and which of them and of the exporters a pass must look at.

A pass looks at what changed since the last one and at what the clock has made due, never
at everything: a lab has thousands of leases of which one is released at a time.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from bullpen.api.client import Client
from bullpen.api.exporter import Exporter
from bullpen.api.lease import Lease
from bullpen.controllers.observing import holder_of
from bullpen.controllers.views import Views
from bullpen.core import leasing
from bullpen.core.quotas import Usage
from bullpen.runtime.informer import Key, key_of, revision_of


@dataclass(slots=True)
class News:
    """Names of what has changed in a namespace."""

    leases: set[str] = field(default_factory=set)
    exporters: set[str] = field(default_factory=set)


class Book:
    def __init__(self, views: Views) -> None:
        self._views = views
        self._pages: dict[str, _Page] = defaultdict(_Page)
        self.arrived: dict[Key, int] = {}
        """In which order leases came that were created in the same second."""

        self._foreseen: dict[Key, int] = {}
        """Revisions that are known from ``foresee`` and that the view has yet to reach."""

        views.leases.listen(self._lease_changed)
        views.exporters.listen(self._exporter_changed)
        views.clients.listen(self._client_changed)

    def take(self, namespace: str, now: datetime) -> News:
        """What to look at; whoever cannot finish gives it back."""
        page = self._pages[namespace]
        news, page.news = page.news, News()
        news.leases |= page.due(now)
        return news

    def give_back(self, namespace: str, news: News) -> None:
        page = self._pages[namespace]
        page.news.leases |= news.leases
        page.news.exporters |= news.exporters

    def open(self, namespace: str, names: Iterable[str]) -> list[Lease]:
        """Those of ``names`` that are open leases, in name order."""
        found = self._pages[namespace].open
        return [found[name] for name in sorted(names) if name in found]

    def waiting(self, namespace: str) -> Mapping[str, Lease]:
        """Leases that have no exporter yet, booked ones too; as they are now, by name."""
        return self._pages[namespace].waiting

    def usage(self, namespace: str, client: str) -> Usage:
        """What a client and its namespace have; leases that are about to come count as waiting."""
        return self._pages[namespace].usage(client)

    def expect(self, namespace: str, client: str, name: str) -> None:
        """A lease is about to come, and counts from now on; until ``settle``."""
        self._pages[namespace].expected[name] = client

    def settle(self, namespace: str, name: str) -> None:
        """A lease that was expected has come, or will not."""
        self._pages[namespace].expected.pop(name, None)

    def next(self, namespace: str) -> datetime | None:
        """The next moment at which time alone changes something."""
        return self._pages[namespace].next()

    def foresee(self, key: Key, new: Lease | None) -> Lease | None:
        """What a lease will be once it can be read; answers with what it was, if it is open.

        What is decided on it is written behind it and shares its fate.
        """
        old = self._pages[key[0]].open.get(key[1])
        self._foreseen.pop(key, None)
        if new is not None:
            self._foreseen[key] = revision_of(new)
        self._put(key, old, new)
        return old

    def _lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        lease = new or old
        assert lease is not None
        key = key_of(lease)
        if new is None or self._foreseen.get(key, 0) <= revision_of(new):
            self._foreseen.pop(key, None)
            self._put(key, old, new)

    def _put(self, key: Key, old: Lease | None, new: Lease | None) -> None:
        page = self._pages[key[0]]
        if new is None or new.status.ended:
            self.arrived.pop(key, None)
        elif old is None and self._views.leases.live:
            self.arrived.setdefault(key, revision_of(new))
        for value in (old, new):
            if value is not None and value.status.exporter_ref is not None:
                page.news.exporters.add(value.status.exporter_ref.name)
        page.put(key[1], new if new is not None and not new.status.ended else None)

    def _exporter_changed(self, old: Exporter | None, new: Exporter | None) -> None:
        exporter = new or old
        assert exporter is not None
        self._pages[exporter.metadata.namespace].exporter_changed(
            exporter.metadata.name, holder_of(new) if new is not None else ""
        )

    def _client_changed(self, old: Client | None, new: Client | None) -> None:
        """What a client may have depends on its labels, and all it has on its being there."""
        client = new or old
        assert client is not None
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            page, name = self._pages[client.metadata.namespace], client.metadata.name
            mine = (n for n, x in page.open.items() if x.spec.client_ref.name == name)
            page.news.leases.update(mine)


class _Page:
    """One namespace."""

    def __init__(self) -> None:
        self.news = News()
        self.open: dict[str, Lease] = {}
        self.waiting: dict[str, Lease] = {}
        self._users: dict[str, set[str]] = defaultdict(set)
        """By exporter, the open leases that say they have it."""

        self._held: dict[str, str] = {}
        """By exporter, the lease it says has it; and the other way round."""

        self._holding: dict[str, str] = {}
        self._agenda: list[tuple[datetime, str]] = []
        """When time alone may change a lease; also times that are no longer right."""

        self._counts: Counter[tuple[str, bool]] = Counter()
        """Open leases by client and whether they have an exporter."""

        self.expected: dict[str, str] = {}
        """Names of leases that are being created, and their clients."""

    def put(self, name: str, lease: Lease | None) -> None:
        """A lease is now this; None if it is not open any more."""
        self.expected.pop(name, None)
        old = self.open.pop(name, None)
        self._count(old, -1)
        self._count(lease, 1)
        if old is not None and old.status.exporter_ref is not None:
            self._users[old.status.exporter_ref.name].discard(name)
        self.waiting.pop(name, None)
        self.news.leases.add(name)
        if name in self._holding:
            self.news.exporters.add(self._holding[name])
        if lease is None:
            return
        self.open[name] = lease
        if lease.status.exporter_ref is None:
            self.waiting[name] = lease
        else:
            self._users[lease.status.exporter_ref.name].add(name)
        before = set(_moments(old)) if old is not None else set()
        for moment in _moments(lease):
            if moment not in before:
                heapq.heappush(self._agenda, (moment, name))

    def usage(self, client: str) -> Usage:
        coming = sum(1 for expected in self.expected.values() if expected == client)
        return Usage(
            active=self._counts[client, True],
            waiting=self._counts[client, False] + coming,
            namespace=len(self.open) + len(self.expected),
        )

    def _count(self, lease: Lease | None, step: int) -> None:
        if lease is None:
            return
        kind = (lease.spec.client_ref.name, lease.status.exporter_ref is not None)
        self._counts[kind] += step
        if not self._counts[kind]:
            del self._counts[kind]

    def exporter_changed(self, name: str, holder: str) -> None:
        self._holding.pop(self._held.pop(name, ""), None)
        if holder:
            self._held[name] = holder
            self._holding[holder] = name
        self.news.exporters.add(name)
        self.news.leases |= self._users[name]

    def due(self, now: datetime) -> set[str]:
        """Leases whose moment has come; it comes once."""
        found = set()
        while self._agenda and self._agenda[0][0] <= now:
            found.add(heapq.heappop(self._agenda)[1])
        return found

    def next(self) -> datetime | None:
        while self._agenda:
            moment, name = self._agenda[0]
            lease = self.open.get(name)
            if lease is not None and moment in _moments(lease):
                return moment
            heapq.heappop(self._agenda)
        return None


def _moments(lease: Lease) -> list[datetime]:
    begin, end = leasing.begins_at(lease.spec), leasing.expires_at(lease)
    begins = begin if lease.status.exporter_ref is None else None
    return [moment for moment in (begins, end) if moment is not None]
