"""Feeds the lab index: the only path by which leases, exporters and rights reach decisions.

Each namespace has one ``core.lab_index.LabIndex``. The reconcilers of leases and of pools
read it and keep no copy of its contents.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from bullpen.api.kinds.accesspolicy import ExporterAccessPolicy
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.deviceclass import DEFAULT_COST, DeviceClass
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease, LeaseStatus
from bullpen.api.objects import Objects
from bullpen.controllers.views import Views
from bullpen.core.claims.lab_inventory import cost_of
from bullpen.core.lab_index import LabIndex
from bullpen.core.leases import access, lifecycle
from bullpen.core.leases.access import Approval, Policies
from bullpen.core.leases.fair_share import Spell
from bullpen.core.leases.lease_group import claim_uid
from bullpen.core.leases.requests import Request, Want
from bullpen.core.matcher import device_of, matcher_of
from bullpen.runtime.informer import Key, Newest, key_of


class Labs:
    """The index of every namespace, updated from the views."""

    def __init__(
        self,
        objects: Objects,
        views: Views,
        *,
        connected: Callable[[Key], bool],
        idle_timeout: timedelta | None = None,
        unmatched_wait: timedelta = timedelta(0),
        claims: bool = True,
    ) -> None:
        """``connected``: whether an exporter is connected.

        ``idle_timeout``: how long leases may be without a connection, if no policy says so.
        ``unmatched_wait``: how long a lease waits for something that matches it.
        ``claims``: whether this process decides about leases, and so knows claims and classes.
        """
        self._claims = views[DeviceClaim] if claims else None
        self._classes = views[DeviceClass] if claims else None
        self.leases = Newest(objects, Lease, views.leases)
        self._views = views
        self._connected = connected
        self._idle_timeout = idle_timeout
        self._unmatched_wait = unmatched_wait
        self._indexes: dict[str, LabIndex] = {}
        self._policies: dict[str, Policies] = {}
        self.leases.listen(self._lease_changed)
        views.exporters.listen(self._exporter_changed)
        views.clients.listen(self._client_changed)
        views.policies.listen(self._policy_changed)

    def of(self, namespace: str) -> LabIndex:
        found = self._indexes.get(namespace)
        if found is None:
            found = self._indexes[namespace] = LabIndex(self._unmatched_wait)
        return found

    def connection_changed(self, key: Key) -> None:
        """An exporter has connected or disconnected."""
        exporter = self._views.exporters.get(*key)
        if exporter is not None:
            self.of(key[0]).refresh_offer(exporter, connected=self._connected(key))

    def policies(self, namespace: str) -> Policies:
        """The access policies of a namespace."""
        found = self._policies.get(namespace)
        if found is None:
            objects = self._views.policies.all(namespace)
            found = access.policies(objects, idle=self._idle_timeout)
            self._policies[namespace] = found
        return found

    def request(self, lease: Lease, *others: Lease, now: datetime) -> Request:
        """A lease that waits, or will wait from its begin time on, as the scheduler sees it.

        ``others`` are assigned together with it, and are alike except for their exporters.
        """
        spec, meta = lease.spec, lease.metadata
        several = ((x.metadata.name, x.spec) for x in (lease, *others) if others)
        client = self._views.clients.get(meta.namespace, spec.client_ref.name)
        asked, claim = meta.creation_timestamp, self._claim_of(lease)
        if claim is not None:
            asked = claim.metadata.creation_timestamp
        assert asked is not None
        return Request(
            name=meta.name,
            client=spec.client_ref.name,
            client_labels=client.metadata.labels if client else None,
            wants=tuple(Want(matcher=matcher_of(s), name=name) for name, s in several)
            or (Want(matcher=matcher_of(spec)),),
            since=asked,
            begin=lifecycle.begins_at(spec),
            sequence=self.of(meta.namespace).arrived.get(meta.name, 0),
            allow_disabled=spec.allow_disabled,
            duration=lifecycle.lasts(lease, now=now),
            patient=now < lifecycle.unmatched_until(lease, self._unmatched_wait),
            priority=claim.spec.rank if claim is not None else 0,
            claim=claim_uid(lease),
        )

    def _claim_of(self, lease: Lease) -> DeviceClaim | None:
        """The claim that a lease serves: it waits in the place of its claim."""
        uid = claim_uid(lease)
        if not uid or self._claims is None:
            return None
        names = (r.name for r in lease.metadata.owner_references if r.uid == uid)
        found = self._claims.get(lease.metadata.namespace, next(names))
        return found if found is not None and found.metadata.uid == uid else None

    def recall(self, lease: Lease, *, now: datetime) -> None:
        """Count an ended lease that ended before this process started."""
        begin, end, held = lease.status.begin_time, lease.status.end_time, lease.status.exporter_ref
        if begin is None or end is None or held is None:
            return
        namespace = lease.metadata.namespace
        spell = Spell(begin=begin, end=end, cost=self._cost(namespace, held.name))
        self.of(namespace).fair_share.used(lifecycle.holder(lease), spell, now=now)

    def _cost(self, namespace: str, exporter: str) -> float:
        """What an hour of the exporter counts for in the fair share."""
        classes = self._classes.all() if self._classes is not None else ()
        costly = [known for known in classes if known.spec.cost != DEFAULT_COST]
        found = self._views.exporters.get(namespace, exporter) if costly else None
        return cost_of(found, costly) if found is not None else DEFAULT_COST

    def approval(self, lease: Lease, exporter: Exporter, *, now: datetime) -> Approval:
        """The approval under which a lease holds the exporter already assigned to it."""
        found = access.approve(
            self.policies(lease.metadata.namespace),
            client=self._client_labels(lease),
            exporter=device_of(exporter),
            duration=lifecycle.lasts(lease, now=now),
        )
        # The approval it was assigned under may have been removed since; the assignment stands.
        return found or Approval()

    def maximum(self, lease: Lease, exporter: Exporter) -> timedelta | None:
        """How long the client of an active lease may keep it under the current policies.

        If no rule applies to the client any more, the maximum granted earlier stands.
        """
        policies, device = self.policies(lease.metadata.namespace), device_of(exporter)
        client = self._client_labels(lease)
        if not access.concerns(policies, client=client, exporter=device):
            return lease.status.maximum_duration
        return access.longest(policies, client=client, exporter=device)

    def limited(self, lease: Lease, *, now: datetime) -> LeaseStatus:
        """The status of a lease whose spec may ask for more than its maximum.

        A policy that now allows more raises the maximum; one that allows less does not shorten what
        was granted.
        """
        known, held = lease.status.maximum_duration, lease.status.exporter_ref
        if known is None or held is None:
            return lease.status
        exporter = self._views.exporters.get(lease.metadata.namespace, held.name)
        if exporter is not None and lifecycle.beyond_maximum(lease, now=now):
            newest = self.maximum(lease, exporter)
            known = None if newest is None else max(newest, known)
        return lifecycle.limited(lease, maximum=known, now=now)

    def client_exists(self, lease: Lease) -> bool:
        client = lease.spec.client_ref.name
        return self._views.clients.get(lease.metadata.namespace, client) is not None

    def _client_labels(self, lease: Lease) -> dict[str, str]:
        client = self._views.clients.get(lease.metadata.namespace, lease.spec.client_ref.name)
        return dict(client.metadata.labels) if client else {}

    def _lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        lease = new or old
        assert lease is not None
        namespace, name = key_of(lease)
        self.of(namespace).put_lease(
            name,
            old,
            new,
            late=self.leases.live,
            cost=lambda exporter: self._cost(namespace, exporter),
        )
        # Whether an exporter can be taken away depends on the lease that holds it.
        if lease.status.exporter_ref is not None and _is_spot(old) != _is_spot(new):
            self.connection_changed((namespace, lease.status.exporter_ref.name))

    def _exporter_changed(self, old: Exporter | None, new: Exporter | None) -> None:
        exporter = new or old
        assert exporter is not None
        key = key_of(exporter)
        self.of(key[0]).put_exporter(key[1], new, connected=self._connected(key))

    def _client_changed(self, old: Client | None, new: Client | None) -> None:
        """A client's rights depend on its labels, and all its leases on its existence."""
        client = new or old
        assert client is not None
        if new is None:
            self.of(client.metadata.namespace).fair_share.forget(client.metadata.name)
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            self.of(client.metadata.namespace).rights_changed(client.metadata.name)

    def _policy_changed(
        self, old: ExporterAccessPolicy | None, new: ExporterAccessPolicy | None
    ) -> None:
        policy = new or old
        assert policy is not None
        self._policies.pop(policy.metadata.namespace, None)
        self.of(policy.metadata.namespace).rights_changed()


def _is_spot(lease: Lease | None) -> bool:
    return lease is not None and not lease.status.ended and lease.status.spot_access
