"""The client's side: request a lease, read it, change it, release it.

A create call is answered after the first decision about the lease, so that a free exporter
is already in the answer. A get call for a waiting lease is held open until the wait ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import ENDED_LABEL, Lease, LeaseSpec
from bullpen.api.meta import LocalObjectReference, ObjectMeta
from bullpen.api.objects import Objects
from bullpen.controllers.object_edit import change
from bullpen.controllers.views import Views
from bullpen.core.leases import access, lifecycle
from bullpen.core.leases.lifecycle import Phase
from bullpen.core.matcher import Device, device_of, matcher_of
from bullpen.core.targets import profiles
from bullpen.errors import BadRequest, Forbidden, NotFound
from bullpen.kit.clock import Clock
from bullpen.kit.durations import text
from bullpen.kit.ids import Ids
from bullpen.kit.names import dns_subdomain_problem
from bullpen.kit.selectors import Selector, parse_labels
from bullpen.runtime.informer import key_of
from bullpen.services.dialing import Precondition
from bullpen.services.extensions import Extensions
from bullpen.services.lease_requests import (
    Edit,
    LeaseRequest,
    label_selector,
    retimed,
    tag_labels,
    times,
)
from bullpen.services.quotas import Gatekeeper
from bullpen.services.signals import Signals
from bullpen.services.traces import Traces

HOLD_SECONDS_MAX = 25.0
"""How long a get of a waiting lease is held. The stock client sleeps 5 s between gets."""

FIRST_HOLD_SECONDS_MAX = 5.0
"""The hold of the first get: until its answer the client cannot show why it waits."""

POLL_PAUSE = timedelta(seconds=4)
DECIDE_SECONDS_MAX = 2.0


class Leases:
    def __init__(
        self,
        objects: Objects,
        views: Views,
        *,
        gatekeeper: Gatekeeper,
        extensions: Extensions,
        signals: Signals,
        clock: Clock,
        ids: Ids,
        traces: Traces | None = None,
    ) -> None:
        self._traces = traces
        self._objects = objects
        self._views = views
        self._gatekeeper = gatekeeper
        self._extensions = extensions
        self._signals = signals
        self._clock = clock
        self._ids = ids
        self._asked: dict[str, datetime] = {}
        """By uid of a waiting lease, when a get was last answered or abandoned."""

        views.leases.listen(self._changed)

    def _changed(self, old: Lease | None, new: Lease | None) -> None:
        lease = new or old
        assert lease is not None
        self._signals.notify(("lease", *key_of(lease)))
        if new is None or new.status.ended:
            self._asked.pop(lease.metadata.uid, None)

    async def create(self, client: Client, asked: LeaseRequest) -> Lease:
        """Create the lease and wait, briefly, for the first decision about it."""
        now = self._clock.now()
        namespace = client.metadata.namespace
        name = asked.lease_id or self._ids.ordered(now)
        problem = dns_subdomain_problem(name)
        if problem:
            raise BadRequest(f"lease id {name!r} {problem}")
        selector = parse_labels(asked.selector)
        if not selector and not asked.exporter:
            raise BadRequest("a lease needs a selector or an exporter name; give one of them")
        begin, end, duration = times(asked.begin, asked.end, asked.duration, now=now)
        lease = Lease(
            metadata=ObjectMeta(
                name=name,
                namespace=namespace,
                labels={**selector.equalities(), **tag_labels(asked.tags)},
            ),
            spec=LeaseSpec(
                client_ref=LocalObjectReference(name=client.metadata.name),
                selector=label_selector(selector),
                exporter_ref=LocalObjectReference(name=asked.exporter) if asked.exporter else None,
                allow_disabled=asked.allow_disabled,
                duration=duration,
                begin_time=begin,
                end_time=end,
                tags=dict(asked.tags),
            ),
        )
        self._gatekeeper.check_duration(lifecycle.lasts(lease, now=now))
        async with self._gatekeeper.creating(client, name):
            created = await self._objects.create(lease)
            if self._traces is not None:
                self._traces.requested(created, start=now)
            self._views.leases.observe(created)
        held = await self._held(created, DECIDE_SECONDS_MAX, _decided)
        if self._traces is not None:
            self._traces.created(created, start=now)
        return held

    async def get(self, namespace: str, name: str) -> Lease:
        """The lease; while the lease waits, the response is held back until the wait ends."""
        lease = await self._views.find_lease(namespace, name)
        now = self._clock.now()
        if lifecycle.phase(lease, now=now) is not Phase.WAITING or self._just_asked(lease, now):
            return lease
        first = lease.metadata.uid not in self._asked
        seconds = FIRST_HOLD_SECONDS_MAX if first else HOLD_SECONDS_MAX
        try:
            return await self._held(lease, seconds, self._over_waiting)
        finally:
            self._answered(namespace, name)

    def _answered(self, namespace: str, name: str) -> None:
        lease = self._views.leases.get(namespace, name)
        if lease is not None and not lease.status.ended:
            self._asked[lease.metadata.uid] = self._clock.now()

    def _just_asked(self, lease: Lease, now: datetime) -> bool:
        """Whether this get is not part of the client's waiting, which pauses between gets.

        A client that gives up reads the lease once more, at once, before it releases it.
        """
        before = self._asked.get(lease.metadata.uid)
        return before is not None and now - before < POLL_PAUSE

    def _over_waiting(self, lease: Lease) -> bool:
        return lifecycle.phase(lease, now=self._clock.now()) in (Phase.ACTIVE, Phase.ENDED)

    async def _held(self, lease: Lease, seconds: float, done: Callable[[Lease], bool]) -> Lease:
        """The lease as soon as it is ``done``, has left the view or ``seconds`` have passed."""
        key = key_of(lease)

        def look() -> bool | None:
            found = self._views.leases.get(*key)
            return True if found is None or done(found) else None

        await self._signals.until(lambda: (("lease", *key),), look, seconds)
        return self._views.leases.get(*key) or await self._views.find_lease(*key)

    async def list(
        self, namespace: str, *, labels: Selector, tags: Selector, active: bool
    ) -> tuple[Lease, ...]:
        """Leases of all clients in the namespace, in name order."""
        found = {
            lease.metadata.name: lease
            for lease in self._views.leases.all(namespace)
            if not (active and lease.status.ended) and _matches(lease, labels, tags)
        }
        if not active:
            ended = self._objects.pages(Lease, namespace=namespace, labels=ENDED_LABEL)
            async with contextlib.aclosing(ended) as pages:
                async for page in pages:
                    found |= {x.metadata.name: x for x in page if _matches(x, labels, tags)}
        return tuple(found[name] for name in sorted(found))

    async def update(self, client: Client, name: str, edit: Edit) -> Lease:
        """Change times, or transfer the lease to another client of the namespace."""

        def edited(newest: Lease) -> Lease:
            _check_owner(client, newest)
            return replace(newest, spec=self._edited(client, newest, edit))

        lease = await self._views.find_lease(client.metadata.namespace, name)
        written = await change(self._objects, self._views.leases, lease, edited)
        return await self._held(written, DECIDE_SECONDS_MAX, _handed_over)

    def _edited(self, client: Client, lease: Lease, edit: Edit) -> LeaseSpec:
        if lease.status.ended:
            raise Precondition(f"lease {lease.metadata.name} has ended and cannot be changed")
        if edit.begin is not None and lease.status.exporter_ref is not None:
            raise Precondition("the begin time can change only before an exporter is assigned")
        now, holder = self._clock.now(), client
        if edit.client is not None:
            holder = self._receiver(lease, edit.client)
        spec = replace(
            retimed(lease, edit, now=now),
            client_ref=LocalObjectReference(name=holder.metadata.name),
        )
        wanted = replace(lease, spec=spec)
        if lifecycle.longer(wanted, lease, now=now):
            self._gatekeeper.check_duration(lifecycle.lasts(wanted, now=now))
            self._check_right(holder, wanted, now)
            if lease.status.exporter_ref is not None:
                until = {lease.metadata.name: lifecycle.expires_at(wanted)}
                self._extensions.check(lease.metadata.namespace, until)
        elif edit.client is not None:
            self._check_right(holder, wanted, now)
        return spec

    def _check_right(self, client: Client, lease: Lease, now: datetime) -> None:
        """A client that extends or takes over a lease needs the right to a lease of that length.

        A waiting lease is refused here, rather than ended by the next decision about it.
        """
        policies = access.policies(self._views.policies.all(lease.metadata.namespace))
        name, asked, duration = (
            client.metadata.name,
            client.metadata.labels,
            lifecycle.lasts(lease, now=now),
        )
        offered = self._offered(lease)
        if not offered or any(
            access.approve(policies, client=asked, exporter=device, duration=duration)
            for device in offered
        ):
            return
        longest = [access.longest(policies, client=asked, exporter=device) for device in offered]
        known = [found for found in longest if found is not None]
        if known:
            raise Forbidden(f"the policies allow {name} at most {text(max(known))}")
        held = lease.status.exporter_ref
        raise Forbidden(
            f"no policy gives {name} access to "
            + (f"exporter {held.name}" if held else "what the lease asks for")
        )

    def _offered(self, lease: Lease) -> tuple[Device, ...]:
        """The exporter a lease holds, or all exporters it may get."""
        namespace, held = lease.metadata.namespace, lease.status.exporter_ref
        named = held or lease.spec.exporter_ref
        if named is not None:
            exporter = self._views.exporters.get(namespace, named.name)
            return (device_of(exporter) if exporter else Device(labels={}),)
        matcher = matcher_of(lease.spec)
        found = [device_of(exporter) for exporter in self._views.exporters.all(namespace)]
        sets = self._views.sets.all(namespace)
        found += [Device(labels=profiles.labels(owner)) for owner in sets]
        return tuple(device for device in found if matcher.matches(device))

    def _receiver(self, lease: Lease, to: str) -> Client:
        if lease.status.exporter_ref is None:
            raise Precondition("only a lease that has an exporter can be transferred")
        client = self._views.clients.get(lease.metadata.namespace, to)
        if client is None:
            raise NotFound(f"there is no client {to} in namespace {lease.metadata.namespace}")
        if to != lease.spec.client_ref.name:
            self._gatekeeper.check_receiver(client)
        return client

    async def release(self, client: Client, name: str, *, idempotent: bool = False) -> None:
        """Release the lease. A second release is refused unless ``idempotent``."""
        lease = await self._views.find_lease(client.metadata.namespace, name)
        _check_owner(client, lease)
        if lease.spec.release and not idempotent:
            raise Precondition(f"lease {name} was already released")
        await self._release(lease)

    async def release_as_exporter(self, exporter: Exporter, name: str) -> None:
        """The exporter itself ends its lease, after a hook."""
        lease = await self._views.find_lease(exporter.metadata.namespace, name)
        held = lease.status.exporter_ref
        if held is None or held.name != exporter.metadata.name:
            raise Precondition(f"lease {name} is not assigned to this exporter")
        await self._release(lease)

    async def _release(self, lease: Lease) -> None:
        def released(newest: Lease) -> Lease:
            if newest.status.ended:
                return newest
            return replace(newest, spec=replace(newest.spec, release=True))

        await change(self._objects, self._views.leases, lease, released)
        await self._held(lease, DECIDE_SECONDS_MAX, lambda found: found.status.ended)


def _matches(lease: Lease, labels: Selector, tags: Selector) -> bool:
    return labels.matches(lease.metadata.labels) and tags.matches(lease.spec.tags)


def _check_owner(client: Client, lease: Lease) -> None:
    if lease.spec.client_ref.name != client.metadata.name:
        name = lease.metadata.name
        raise Forbidden(f"permission denied: lease {name} belongs to another client")


def _decided(lease: Lease) -> bool:
    """Assigned, waiting with a reason, or refused; or booked for later, which has no status yet."""
    return bool(lease.status.conditions) or lease.spec.begin_time is not None


def _handed_over(lease: Lease) -> bool:
    """Whether the lease has reached its client, so that the client can connect at once."""
    return lease.status.ended or not lifecycle.handing_over(lease)
