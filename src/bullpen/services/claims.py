"""The client's side of claims: create one, follow it, change it, release it, or only ask.

What a claim gets is decided by the controller of claims. A create call is answered after the
first decision, so that free exporters are already in the answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from bullpen.api import codec
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.deviceclaim import DeviceClaim, DeviceClaimSpec
from bullpen.api.meta import LocalObjectReference, ObjectMeta
from bullpen.api.objects import Objects
from bullpen.api.resources import RESOURCES
from bullpen.controllers.claims.claim_labs import ClaimLabs
from bullpen.controllers.labs import Labs
from bullpen.controllers.object_edit import change
from bullpen.controllers.views import Views
from bullpen.core.claims.claim_indexes import ClaimIndexes
from bullpen.core.claims.claim_pass import dry_run
from bullpen.core.claims.explanation import Explanation
from bullpen.core.claims.work import BUDGET, PassBudget, loop_budget, question_budget
from bullpen.core.leases import access
from bullpen.core.leases.quotas import Quotas
from bullpen.core.leases.requests import Supply
from bullpen.core.matcher import device_of
from bullpen.errors import BadRequest, Forbidden, Invalid, NotFound
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.kit.names import dns_subdomain_problem
from bullpen.runtime.informer import key_of
from bullpen.services.dialing import Precondition
from bullpen.services.extensions import Extensions
from bullpen.services.quotas import Gatekeeper
from bullpen.services.signals import Signals

DECIDE_SECONDS_MAX = 2.0

WATCH_SECONDS_MAX = 3600.0
"""How long a watch without changes lasts; a client that waits longer watches again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimEdit:
    """Changes of a claim; None leaves a field as it is."""

    duration: timedelta | None = None
    begin: datetime | None = None
    priority: int | None = None
    client: str | None = None
    """The client that gets the claim."""


class Claims:
    def __init__(
        self,
        objects: Objects,
        views: Views,
        labs: Labs,
        *,
        gatekeeper: Gatekeeper,
        extensions: Extensions,
        supplies: Callable[[str], tuple[Supply, ...]],
        quotas: Quotas,
        signals: Signals,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._objects = objects
        self._views = views
        self._claims = views[DeviceClaim]
        self._labs = labs
        self._gatekeeper = gatekeeper
        self._extensions = extensions
        self._claim_labs = ClaimLabs(views, labs, quotas, supplies)
        self._signals = signals
        self._clock = clock
        self._ids = ids
        self._questions, self._loops = question_budget(), loop_budget()
        """What dry runs of all clients may take together."""

        self._claims.listen(self._changed)

    def _changed(self, old: DeviceClaim | None, new: DeviceClaim | None) -> None:
        claim = new or old
        assert claim is not None
        self._signals.notify(("claim", *key_of(claim)))

    async def create(self, client: Client, name: str, spec: DeviceClaimSpec) -> DeviceClaim:
        """Create the claim and wait, briefly, for the first decision about it."""
        name = name or self._ids.ordered(self._clock.now())
        problem = dns_subdomain_problem(name)
        if problem:
            raise BadRequest(f"claim id {name!r} {problem}")
        claim = self._claim_of(client, name, spec)
        self._gatekeeper.check_duration(spec.duration)
        self._gatekeeper.check_priority(spec.priority)
        async with self._gatekeeper.creating(client, name, waiting=self._waiting(client)):
            created = await self._objects.create(claim)
            self._claims.observe(created)
        return await self._held(created, lambda found: bool(found.status.conditions))

    def _claim_of(self, client: Client, name: str, spec: DeviceClaimSpec) -> DeviceClaim:
        meta = ObjectMeta(name=name, namespace=client.metadata.namespace)
        owner = LocalObjectReference(name=client.metadata.name)
        return DeviceClaim(metadata=meta, spec=replace(spec, client_ref=owner))

    def _waiting(self, client: Client) -> int:
        """The claims of a client that have no leases yet."""
        return sum(
            claim.spec.client_ref.name == client.metadata.name
            and not claim.status.ended
            and not claim.status.members
            for claim in self._claims.all(client.metadata.namespace)
        )

    async def get(self, namespace: str, name: str) -> DeviceClaim:
        return self._claims.get(namespace, name) or await self._objects.get(
            DeviceClaim, namespace, name
        )

    def list(self, namespace: str, *, ended: bool) -> tuple[DeviceClaim, ...]:
        """The claims of all clients in the namespace, in name order."""
        found = (c for c in self._claims.all(namespace) if ended or not c.status.ended)
        return tuple(sorted(found, key=key_of))

    async def watch(self, namespace: str, name: str) -> AsyncGenerator[DeviceClaim, None]:
        """The claim now and after each change, until it has ended or is deleted."""
        claim = await self.get(namespace, name)
        while True:
            yield claim
            seen = claim.metadata.resource_version

            def look(seen: str = seen) -> bool | None:
                found = self._claims.get(namespace, name)
                return True if found is None or found.metadata.resource_version != seen else None

            if claim.status.ended or not await self._signals.until(
                lambda: (("claim", namespace, name),), look, WATCH_SECONDS_MAX
            ):
                return
            newest = self._claims.get(namespace, name)
            if newest is None:
                raise NotFound(f"claim {name} was deleted")
            claim = newest

    async def update(self, client: Client, name: str, edit: ClaimEdit) -> DeviceClaim:
        """Change times or priority, or transfer the claim with its leases."""

        def edited(newest: DeviceClaim) -> DeviceClaim:
            _check_owner(client, newest)
            return replace(newest, spec=self._edited(client, newest, edit))

        claim = await self.get(client.metadata.namespace, name)
        return await change(self._objects, self._claims, claim, edited)

    def _edited(self, client: Client, claim: DeviceClaim, edit: ClaimEdit) -> DeviceClaimSpec:
        name, spec = claim.metadata.name, claim.spec
        if claim.status.ended or spec.release:
            raise Precondition(f"claim {name} has ended and cannot be changed")
        if edit.begin is not None and claim.status.members:
            raise Precondition("the begin time can change only before the claim has its targets")
        holder = client if edit.client is None else self._receiver(claim, edit.client)
        changed = replace(
            spec,
            client_ref=LocalObjectReference(name=holder.metadata.name),
            duration=spec.duration if edit.duration is None else edit.duration,
            begin_time=spec.begin_time if edit.begin is None else edit.begin,
            priority=spec.priority if edit.priority is None else edit.priority,
        )
        if changed.priority > spec.priority:
            self._gatekeeper.check_priority(changed.priority)
        if changed.duration > spec.duration:
            self._gatekeeper.check_duration(changed.duration)
            # A claim that has its targets keeps them only until others have booked them.
            self._extensions.check_claim(replace(claim, spec=changed))
        if changed.duration > spec.duration or holder is not client:
            self._check_right(holder, claim, changed.duration)
        return changed

    def _receiver(self, claim: DeviceClaim, to: str) -> Client:
        if not claim.status.members:
            raise Precondition("only a claim that has its targets can be transferred")
        client = self._views.clients.get(claim.metadata.namespace, to)
        if client is None:
            raise NotFound(f"there is no client {to} in namespace {claim.metadata.namespace}")
        if to != claim.spec.client_ref.name:
            self._gatekeeper.check_receiver(client, leases=len(claim.status.members))
        return client

    def _check_right(self, client: Client, claim: DeviceClaim, duration: timedelta) -> None:
        """The holder of a claim needs the right to each of its targets for so long."""
        policies = self._labs.policies(claim.metadata.namespace)
        for member in claim.status.members:
            exporter = self._views.exporters.get(claim.metadata.namespace, member.device)
            if exporter is not None and not access.approve(
                policies,
                client=client.metadata.labels,
                exporter=device_of(exporter),
                duration=duration,
            ):
                raise Forbidden(
                    f"no policy gives {client.metadata.name} access to exporter"
                    f" {member.device} for so long"
                )

    async def release(self, client: Client, name: str) -> DeviceClaim:
        """End the claim with all its leases; releasing it again changes nothing."""

        def released(newest: DeviceClaim) -> DeviceClaim:
            _check_owner(client, newest)
            if newest.status.ended:
                return newest
            return replace(newest, spec=replace(newest.spec, release=True))

        claim = await self.get(client.metadata.namespace, name)
        written = await change(self._objects, self._claims, claim, released)
        return await self._held(written, lambda found: found.status.ended)

    async def _held(self, claim: DeviceClaim, done: Callable[[DeviceClaim], bool]) -> DeviceClaim:
        """The claim as soon as it is ``done``, or after a short wait."""
        key = key_of(claim)

        def look() -> bool | None:
            found = self._claims.get(*key)
            return True if found is None or done(found) else None

        await self._signals.until(lambda: (("claim", *key),), look, DECIDE_SECONDS_MAX)
        return self._claims.get(*key) or claim

    async def schedule(
        self, client: Client, spec: DeviceClaimSpec, *, waited: timedelta
    ) -> Explanation:
        """What a claim of the client would get now, and why. Nothing is created."""
        await self._gatekeeper.check_rate(client)
        claim = self._claim_of(client, "dry-run", spec)
        resource = RESOURCES.of(DeviceClaim)
        causes = resource.validate(resource.default(codec.encode(claim)))
        if causes:
            raise Invalid("; ".join(f"{cause.field}: {cause.message}" for cause in causes))
        now = self._clock.now()
        lab = self._claim_labs.of(client.metadata.namespace, now=now)
        # All clients together get so much work done: what is beyond it is unknown.
        self._questions.begin(now)
        budget = PassBudget(BUDGET, 2 * self._questions.available)
        indexes = ClaimIndexes(self._loops)
        found = dry_run(lab, claim, now=now, waited=waited, indexes=indexes, budget=budget)
        self._questions.spend(min(budget.used, self._questions.available))
        return found


def _check_owner(client: Client, claim: DeviceClaim) -> None:
    if claim.spec.client_ref.name != client.metadata.name:
        name = claim.metadata.name
        raise Forbidden(f"permission denied: claim {name} belongs to another client")
