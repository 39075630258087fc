"""A namespace as scheduling looks at it: exporters as offers, waiting leases as requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from bullpen.api.exporter import Exporter
from bullpen.api.lease import Lease, LeaseStatus
from bullpen.controllers.presence import Connections
from bullpen.controllers.views import Views
from bullpen.core import access, leasing, members, presence
from bullpen.core.access import Approval
from bullpen.core.scheduling import Request
from bullpen.core.stock import Offer, Stock
from bullpen.runtime.informer import Key, key_of

Changed = Callable[[str, Offer | None, Offer | None], None]
"""Told of an offer's namespace, what it was and what it is; None for no offer."""


class Offers:
    """The exporters of every namespace as offers, kept current as they change."""

    def __init__(self, views: Views, connections: Connections, changed: Changed) -> None:
        self._views = views
        self._connections = connections
        self._changed = changed
        self._stocks: dict[str, Stock] = defaultdict(Stock)
        views.exporters.listen(self._exporter_changed)
        views.leases.listen(self._lease_changed)
        connections.listen(self._connection_changed)

    def of(self, namespace: str) -> Stock:
        return self._stocks[namespace]

    def _exporter_changed(self, old: Exporter | None, new: Exporter | None) -> None:
        exporter = new or old
        assert exporter is not None
        namespace, name = key_of(exporter)
        stock = self._stocks[namespace]
        before, after = stock.get(name), None
        if new is not None:
            after = offer(self._views, new, self._connections.connected)
            stock.put(after)
        else:
            stock.remove(name)
        self._changed(namespace, before, after)

    def _lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """Whether an exporter can be taken away depends on the lease that has it."""
        spot = new is not None and new.status.spot_access
        if spot == (old is not None and old.status.spot_access):
            return
        lease = new or old
        if lease is not None and lease.status.exporter_ref is not None:
            self._connection_changed((lease.metadata.namespace, lease.status.exporter_ref.name))

    def _connection_changed(self, key: Key) -> None:
        exporter = self._views.exporters.get(*key)
        if exporter is not None:
            self._exporter_changed(None, exporter)


def approval(views: Views, lease: Lease, exporter: Exporter, *, now: datetime) -> Approval:
    """The right by which a lease has an exporter it has already taken."""
    client = views.clients.get(lease.metadata.namespace, lease.spec.client_ref.name)
    found = access.approve(
        access.policies(views.policies.all(lease.metadata.namespace)),
        client=client.metadata.labels if client else {},
        exporter=exporter.metadata.labels,
        duration=leasing.lasts(lease, now=now),
    )
    # It may have been taken under a right that has gone since; the taking stands.
    return found or Approval()


def maximum(views: Views, lease: Lease, exporter: Exporter) -> timedelta | None:
    """How long the client of an active lease may have it under the policies there are now.

    Where no rule concerns the client any more, what it was given stands.
    """
    client = views.clients.get(lease.metadata.namespace, lease.spec.client_ref.name)
    asked = client.metadata.labels if client else {}
    policies = access.policies(views.policies.all(lease.metadata.namespace))
    labels = exporter.metadata.labels
    if not access.concerns(policies, client=asked, exporter=labels):
        return lease.status.maximum_duration
    return access.longest(policies, client=asked, exporter=labels)


def limited(views: Views, lease: Lease, *, now: datetime) -> LeaseStatus:
    """The status of a lease whose spec may ask for more than the lease may have.

    A policy that allows more than when the lease was given counts; one that allows less does not
    shorten what was given.
    """
    known, held = lease.status.maximum_duration, lease.status.exporter_ref
    if known is None or held is None:
        return lease.status
    exporter = views.exporters.get(lease.metadata.namespace, held.name)
    if exporter is not None and leasing.beyond_maximum(lease, now=now):
        newest = maximum(views, lease, exporter)
        known = None if newest is None else max(newest, known)
    return leasing.limited(lease, maximum=known, now=now)


def holder_of(exporter: Exporter) -> str:
    """Name of the lease that has the exporter; empty if none has."""
    ref = exporter.status.lease_ref
    return ref.name if ref else ""


def offer(views: Views, exporter: Exporter, connected: Callable[[Key], bool]) -> Offer:
    """An exporter as scheduling looks at it; one that served its one lease is never free."""
    holder = holder_of(exporter)
    held = views.leases.get(exporter.metadata.namespace, holder) if holder else None
    spent = members.spent(exporter)
    leaving = exporter.metadata.deletion_timestamp is not None
    return Offer(
        name=exporter.metadata.name,
        labels=exporter.metadata.labels,
        enabled=exporter.spec.enabled,
        # The condition may be left over from before a restart; the connection is not.
        online=connected(key_of(exporter)) and presence.registered(exporter) and not leaving,
        idle=presence.idle(exporter) and not spent,
        holder=holder,
        holder_spot=held is not None and held.status.spot_access,
        stuck=presence.stuck(exporter) or spent,
    )


def request(views: Views, lease: Lease, arrived: Mapping[Key, int], *, now: datetime) -> Request:
    """A lease that waits, or will, as scheduling looks at it."""
    spec, meta = lease.spec, lease.metadata
    client = views.clients.get(meta.namespace, spec.client_ref.name)
    asked = meta.creation_timestamp
    assert asked is not None
    return Request(
        name=meta.name,
        client=spec.client_ref.name,
        client_labels=client.metadata.labels if client else None,
        selector=spec.selector.selector(),
        # A begin time in the past must not be a way to the front of the queue.
        since=max(leasing.begins_at(spec) or asked, asked),
        sequence=arrived.get(key_of(lease), 0),
        exporter=spec.exporter_ref.name if spec.exporter_ref else "",
        allow_disabled=spec.allow_disabled,
        duration=leasing.lasts(lease, now=now),
    )
