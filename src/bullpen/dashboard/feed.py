"""Rows as a stream: one snapshot, then changes, resumable after a lost connection.

Changes are kept once for all streams, as the keys of the rows that changed. A stream is a
position among them, so a slow reader costs nothing, and a reader that comes back with its
position continues there. Rows are made when they are sent, from the views of the lab.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

from bullpen.api.fields import Kind
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.lease import Lease
from bullpen.api.kinds.providerconfig import ProviderConfig
from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.api.paths import encode
from bullpen.controllers.views import Views
from bullpen.dashboard import rows
from bullpen.dashboard.people import Scope
from bullpen.dashboard.rows import CLAIM, LEASE, POOL, PROVIDER, TARGET, Row
from bullpen.errors import Unavailable
from bullpen.kit.clock import Clock
from bullpen.runtime.informer import key_of

CHANGES_MAX = 50_000
"""Changes that are kept; a reader that missed more gets a new snapshot."""

GATHER_SECONDS = 0.2
"""Changes within this time are sent together."""

QUIET_SECONDS = 10.0
"""After this time without changes the reader gets a sign of life, and its rights are checked."""

PART_ROWS = 1_000
"""Rows in one part of a snapshot; making them takes about 20 ms."""

POSITION_DIGITS_MAX = 18
ALIVE = b": alive\n\n"
"""A comment, which browsers ignore."""

Key = tuple[str, str, str]
"""Kind of row, namespace, name."""


class Changes:
    """The keys of the rows that changed last, by number."""

    def __init__(self, limit: int = CHANGES_MAX) -> None:
        self._keys: deque[Key] = deque(maxlen=limit)
        self.position = 0
        """The number of changes so far."""

    def add(self, key: Key) -> None:
        self._keys.append(key)
        self.position += 1

    def since(self, position: int) -> list[Key] | None:
        """The keys after ``position``, each once; None if they are not all kept."""
        missed = self.position - position
        if missed < 0 or missed > len(self._keys):
            return None
        newest = list(self._keys)[len(self._keys) - missed :]
        return list(dict.fromkeys(newest))


@dataclass(frozen=True, slots=True)
class Reader:
    """One stream: what its person may see now, and where it continues."""

    scope: Callable[[], Awaitable[Scope | None]]
    """None once the person is signed out."""

    last_event_id: str = ""


class Feed:
    """Follows the views from before their first list on."""

    def __init__(
        self, views: Views, *, clock: Clock, epoch: str, hidden: frozenset[str] = frozenset()
    ) -> None:
        """``epoch`` tells positions of this process from those of an earlier one."""
        self._views = views
        self._clock = clock
        self._epoch = epoch
        self._hidden = hidden
        self._changes = Changes()
        self._news = asyncio.Event()
        self._closed = False
        self._claims = views[DeviceClaim]
        self._pools = views[VirtualTargetPool]
        self._providers = views[ProviderConfig]
        views.exporters.listen(self._named(TARGET))
        views.leases.listen(self._lease_changed)
        self._claims.listen(self._named(CLAIM))
        views.sets.listen(self._named(POOL, f"{ExporterSet.kind}/"))
        self._pools.listen(self._named(POOL, f"{VirtualTargetPool.kind}/"))
        self._providers.listen(self._named(PROVIDER))

    def close(self) -> None:
        """End every stream."""
        self._closed = True
        self._news.set()

    def _lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        for lease in (old, new):
            if lease is not None:
                self._changed(LEASE, lease.metadata.namespace, lease.metadata.name)
                held = lease.status.exporter_ref
                if held is not None:
                    self._changed(TARGET, lease.metadata.namespace, held.name)

    def _named(self, row: str, prefix: str = "") -> Callable[[Kind | None, Kind | None], None]:
        """A listener for objects that have a row each, of their own name."""

        def changed(old: Kind | None, new: Kind | None) -> None:
            found = new or old
            assert found is not None
            namespace, name = key_of(found)
            self._changed(row, namespace, f"{prefix}{name}")

        return changed

    def _changed(self, kind: str, namespace: str, name: str) -> None:
        self._changes.add((kind, namespace, name))
        self._news.set()

    async def stream(self, reader: Reader) -> AsyncIterator[bytes]:
        """Server-sent events; ends when the person is signed out or the service stops."""
        position: int | None = None
        shown = ""
        while not self._closed:
            try:
                scope = await reader.scope()
            except Unavailable:
                return  # the browser comes back by itself, and continues where it was
            if scope is None:
                yield event("signed-out", {})
                return
            view = f"{self._epoch}.{scope.digest}"
            if not shown:
                position = _resumed(reader.last_event_id, view)
            elif view != shown:
                position = None
            keys = self._changes.since(position) if position is not None else None
            position, shown = self._changes.position, view
            if keys is None:
                # What changes while the parts are sent is sent again, from this position on.
                async for part in self._snapshot(scope, id=f"{view}-{position}"):
                    yield part
            elif keys:
                yield event("changes", self._rows(keys, scope), id=f"{view}-{position}")
            else:
                yield ALIVE
            await self._next(position)

    async def _next(self, position: int) -> None:
        """Wait for changes, or for the time of a sign of life."""
        if self._changes.position == position and not self._closed:
            self._news.clear()
            try:
                async with asyncio.timeout(QUIET_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                return
        if not self._closed:
            await asyncio.sleep(GATHER_SECONDS)

    async def _snapshot(self, scope: Scope, *, id: str) -> AsyncIterator[bytes]:
        """Every row that is in ``scope``, in parts, so that others are served in between.

        Only the last part has an id: a reader that comes back before it starts over.
        """
        keys = [key for key in self._keys() if scope.sees(*key[:2])]
        starts = range(0, max(len(keys), 1), PART_ROWS)
        for start in starts:
            is_last = start == starts[-1]
            data = self._rows(keys[start : start + PART_ROWS], scope)
            data |= {"first": start == 0, "last": is_last}
            yield event("snapshot", data, id=id if is_last else "")
            await asyncio.sleep(0)

    def _keys(self) -> Iterator[Key]:
        """Of all rows."""
        views = self._views
        for found in views.exporters.all():
            yield TARGET, found.metadata.namespace, found.metadata.name
        for lease in views.leases.all():
            yield LEASE, lease.metadata.namespace, lease.metadata.name
        for claim in self._claims.all():
            if not claim.status.ended:
                yield CLAIM, claim.metadata.namespace, claim.metadata.name
        for pools in (views.sets, self._pools):
            for pool in pools.all():
                yield POOL, pool.metadata.namespace, f"{pool.kind}/{pool.metadata.name}"
        for provider in self._providers.all():
            yield PROVIDER, provider.metadata.namespace, provider.metadata.name

    def _rows(self, keys: list[Key], scope: Scope) -> Row:
        """The rows of these keys as they are now, and the keys whose rows are gone."""
        changed: dict[str, list[Row]] = {}
        gone: list[Key] = []
        for key in keys:
            kind, namespace, name = key
            if not scope.sees(kind, namespace):
                continue
            row = self._row(kind, namespace, name)
            if row is None:
                gone.append(key)
            else:
                changed.setdefault(kind, []).append(row)
        return {"now": self._now(), "rows": changed, "gone": gone}

    def _row(self, kind: str, namespace: str, name: str) -> Row | None:
        if kind == TARGET:
            exporter = self._views.exporters.get(namespace, name)
            return self._target(exporter) if exporter is not None else None
        if kind == LEASE:
            lease = self._views.leases.get(namespace, name)
            return self._lease(lease) if lease is not None else None
        if kind == CLAIM:
            claim = self._claims.get(namespace, name)
            return rows.claim_row(claim) if claim is not None and not claim.status.ended else None
        if kind == PROVIDER:
            provider = self._providers.get(namespace, name)
            return rows.provider_row(provider) if provider is not None else None
        pool_kind, _, name = name.partition("/")
        if pool_kind == ExporterSet.kind:
            found = self._views.sets.get(namespace, name)
            return rows.set_row(found) if found is not None else None
        pool = self._pools.get(namespace, name)
        return rows.pool_row(pool) if pool is not None else None

    def _target(self, exporter: Exporter) -> Row:
        held = exporter.status.lease_ref
        namespace = exporter.metadata.namespace
        lease = self._views.leases.get(namespace, held.name) if held is not None else None
        return rows.target_row(exporter, lease, hidden=self._hidden)

    def _lease(self, lease: Lease) -> Row:
        return rows.lease_row(lease, now=self._clock.now())

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _resumed(last_event_id: str, view: str) -> int | None:
    """The position of a reader that saw the same rows in the same process before."""
    before, _, position = last_event_id.rpartition("-")
    if before != view or not position.isascii() or not position.isdigit():
        return None
    return int(position[:POSITION_DIGITS_MAX])


def event(kind: str, data: object, *, id: str = "") -> bytes:
    """One server-sent event; JSON has no line ends, so it is one line of data."""
    head = f"id: {id}\nevent: {kind}\ndata: " if id else f"event: {kind}\ndata: "
    return head.encode() + encode(data) + b"\n\n"
