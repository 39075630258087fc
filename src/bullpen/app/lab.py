"""The builder of every process of the lab, of the simulator, the benchmarks and the tests.

A ``Lab`` has the parts that the controllers and services of one process share. Its caller
chooses the objects, the sources of time and randomness, the role, the provisioners and the
controllers; ``app.controllers`` lists the controllers, ``app.services`` makes the services.
Everything is made first and then runs together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto
from functools import cached_property
from types import MappingProxyType
from typing import Any

from bullpen.api.fields import Kind
from bullpen.api.kinds import rbac
from bullpen.api.kinds.core import ConfigMap, CoordinationLease, Namespace, Secret
from bullpen.api.objects import Objects
from bullpen.api.pod import Pod
from bullpen.app.config import Config
from bullpen.app.router import LocalRouter
from bullpen.app.sources import Sources
from bullpen.app.webhook_post import post
from bullpen.cluster.objects import Scope
from bullpen.controllers import authority
from bullpen.controllers.exporters.credentials import CredentialReconciler
from bullpen.controllers.exporters.presence_reconciler import Connections, Reports
from bullpen.controllers.labs import Labs
from bullpen.controllers.leases.lease_counter import LeaseCounter
from bullpen.controllers.leases.session_recorder import SessionRecorder
from bullpen.controllers.pools.exporterset_reconciler import ExporterSetReconciler
from bullpen.controllers.pools.pool_observer import TUNING, PoolObserver, Tuning
from bullpen.controllers.pools.provider_slots import ProviderSlots
from bullpen.controllers.pools.remote_pools import RemotePools
from bullpen.controllers.targets.blueprints import Blueprints
from bullpen.controllers.targets.disk_users import DiskUsers
from bullpen.controllers.targets.instance_view import InstanceView
from bullpen.controllers.targets.target_supplies import TargetSupplies
from bullpen.controllers.views import Views
from bullpen.controllers.webhooks import WebhookReconciler
from bullpen.core.exporters import presence
from bullpen.core.leases.preemption import PREEMPTION, PreemptionTimes
from bullpen.core.leases.quotas import Quotas
from bullpen.core.leases.requests import Supply
from bullpen.core.notifications import Webhook
from bullpen.core.rbac.authorization import AccessIndex
from bullpen.identity.oidc import OutsideTokens
from bullpen.identity.tokens import Signer, Tickets
from bullpen.placements.base import DiskStorage
from bullpen.placements.local.confinement import Sandboxing
from bullpen.provisioners.base import BackedProvisioner, Provisioner
from bullpen.runtime.controller import Controller, Trigger
from bullpen.runtime.events import Events
from bullpen.runtime.informer import Key
from bullpen.runtime.loop import supervise
from bullpen.services import routing
from bullpen.services.grpc.client import LabelSettings
from bullpen.services.router.pairing import fencing
from bullpen.services.routing import ROUTER_LABEL, Routers
from bullpen.services.signals import Signals
from bullpen.services.traces import Traces


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSettings:
    """The operator's settings for leases, exporters and pools."""

    endpoint: str
    """Where clients and exporters reach the controller, as ``host:port``."""

    ca_pem: str
    """The CA that verifies their TLS connections."""

    retention: timedelta = timedelta(hours=24)
    """How long an ended lease stays readable."""

    idle_timeout: timedelta | None = None
    """How long a lease may be without a connection before it ends; None for ever."""

    unmatched_wait: timedelta = timedelta(0)
    """How long a lease waits for a matching exporter or pool to appear before it is refused."""

    stuck_after: timedelta = timedelta(minutes=5)
    """How long an exporter may take to become available after a lease."""

    quotas: Quotas = field(default_factory=Quotas)
    """The limits of one client."""

    preemption: PreemptionTimes = PREEMPTION
    pools: Tuning = TUNING
    labels: LabelSettings = field(default_factory=LabelSettings)
    webhooks: tuple[Webhook, ...] = ()
    provisioning: bool = False
    """Whether an unknown user of an outside issuer gets a Client at the first call."""

    authority_home: str | None = None
    """The namespace that gets our CA certificate besides those with labs; None for all."""

    identity: str = ""
    """Identifies the home of the objects at providers; empty for a cluster, where uids do."""

    @classmethod
    def of(cls, config: Config, *, endpoint: str, ca_pem: bytes, identity: str = "") -> LabSettings:
        return cls(
            endpoint=endpoint,
            ca_pem=ca_pem.decode(),
            identity=identity,
            retention=config.leases.kept(),
            idle_timeout=config.leases.idle(),
            unmatched_wait=config.leases.unmatched(),
            quotas=config.leases.quotas(),
            preemption=config.leases.preemption(),
            stuck_after=config.exporters.stuck(),
            pools=config.pools.tuning(),
            labels=LabelSettings(
                hidden=frozenset(config.labels.hidden), deprecated=config.labels.deprecated
            ),
            webhooks=config.told(),
            provisioning=config.provisioning,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What signs and verifies the tokens of a lab."""

    signer: Signer
    tickets: Tickets
    outside: OutsideTokens


class Role(Enum):
    """The part of the lab that one process runs."""

    WHOLE = auto()
    """Everything."""

    LEASES = auto()
    """Leases, exporters and clients. The pools are in other processes."""

    POOLS = auto()
    """The pools of some provisioners. Exporters connect to another process."""


class Lab:
    """The shared parts of one process, made when first used and before ``running``."""

    def __init__(
        self,
        objects: Objects,
        settings: LabSettings,
        sources: Sources,
        *,
        role: Role = Role.WHOLE,
        keys: Keys | None = None,
        provisioners: tuple[Provisioner, ...] = (),
        sandboxing: Mapping[str, Sandboxing] = MappingProxyType({}),
        disk_storage: DiskStorage | None = None,
        component: str = "bullpen",
        traces: Traces | None = None,
    ) -> None:
        """``sandboxing`` is the sandbox each provisioner provides, if known here.

        ``disk_storage`` may be missing in a process that cannot store lasting disks.

        ``keys`` may be missing in a process that neither issues nor verifies tokens;
        ``component`` is the reporter of its Events.
        """
        self.objects = objects
        self.settings = settings
        self.role = role
        self.sandboxing = sandboxing
        self.disk_storage = disk_storage
        self.clock, self.ids, self.chance = sources.clock, sources.ids, sources.chance
        self.retry = sources.retry
        self.views = Views(objects, retry=self.retry)
        self.events = Events(objects, clock=self.clock, ids=self.ids, component=component)
        self.signals = Signals()
        self.routers = Routers(clock=self.clock)
        self.views.coordination.listen(self.routers.observe)
        self.connections = Connections(clock=self.clock)
        self.labs = Labs(
            objects,
            self.views,
            connected=self._is_online if role is Role.POOLS else self.connections.connected,
            idle_timeout=settings.idle_timeout,
            unmatched_wait=settings.unmatched_wait,
            claims=role is not Role.POOLS,
        )
        self.connections.listen(self.labs.connection_changed)
        self.supply_changed: Trigger[str] = Trigger()
        """Namespaces whose waiting leases must be told something new about pools."""

        self.reservations_changed: Trigger[str] = Trigger()
        """Namespaces whose waiting leases must be decided again: claims keep less from them."""

        self.presence_changed: Trigger[Key] = Trigger()
        """Exporters that connected, disconnected or reported their state."""

        self.reports = Reports(objects, self.views, failed=self.presence_changed)

        self.member_changed: Trigger[Key] = Trigger()
        """Members of pools whose instance must be looked at."""

        self.traces = traces
        if traces is not None:
            traces.follow(self.views.leases)
        self.started = False
        self._keys = keys
        self._provisioners = provisioners

    @property
    def keys(self) -> Keys:
        assert self._keys is not None, "this process neither issues nor verifies tokens"
        return self._keys

    def _is_online(self, key: Key) -> bool:
        """Whether an exporter is connected to the controller, according to its status."""
        found = self.views.exporters.get(*key)
        return found is not None and presence.online(found)

    # Parts of leases, exporters and clients

    @cached_property
    def credentials(self) -> CredentialReconciler:
        return CredentialReconciler(
            self.objects,
            self.views,
            signer=self.keys.signer,
            endpoint=self.settings.endpoint,
            clock=self.clock,
            ids=self.ids,
            events=self.events,
        )

    @cached_property
    def sessions(self) -> SessionRecorder:
        return SessionRecorder(
            self.objects,
            self.views.leases,
            clock=self.clock,
            events=self.events,
            retry=self.retry,
        )

    @cached_property
    def webhooks(self) -> WebhookReconciler:
        return WebhookReconciler(
            self.settings.webhooks, self.views, clock=self.clock, ids=self.ids, post=post
        )

    @cached_property
    def lease_counter(self) -> LeaseCounter:
        return LeaseCounter(self.views, clock=self.clock)

    @cached_property
    def supplies(self) -> Callable[[str], tuple[Supply, ...]]:
        """Finds what pools and lasting targets could provide to the leases of a namespace."""
        targets = TargetSupplies(self.views, supply_changed=self.supply_changed)
        if self.role is Role.LEASES:
            pools = RemotePools(self.views, supply_changed=self.supply_changed).supplies
        else:
            pools = self.exporter_sets.supplies
        return lambda namespace: (*pools(namespace), *targets.coming.get(namespace, {}).values())

    @cached_property
    def claim_supplies(self) -> Callable[[str], tuple[Supply, ...]]:
        """The same with the free slots of providers, which only claims look at."""
        supplies, slots = self.supplies, ProviderSlots(self.views)
        return lambda namespace: slots.applied(namespace, supplies(namespace))

    def attach_router(self, router: LocalRouter, endpoint: str) -> None:
        """Use a router of this process: it learns which leases end, and reports its sessions."""
        self.routers.set_local(routing.Router(endpoint, lambda: router.load))
        self.views.leases.listen(fencing(router))
        router.on_session = self.sessions.saw
        router.admit_only(self.sessions.knows)

    # Parts of pools

    @cached_property
    def instance_view(self) -> InstanceView:
        return InstanceView(self._provisioners, clock=self.clock, alone=self._alone)

    @property
    def backed(self) -> dict[str, BackedProvisioner]:
        """The provisioners of this process that use ProviderConfigs."""
        return {
            found.name: found
            for found in self._provisioners
            if isinstance(found, BackedProvisioner)
        }

    @cached_property
    def blueprints(self) -> Blueprints:
        return Blueprints(
            self.views,
            self.instance_view.provisioners,
            ca_pem=self.settings.ca_pem,
            alone=self._alone,
        )

    @cached_property
    def disk_users(self) -> DiskUsers:
        return DiskUsers(self.views)

    @cached_property
    def pool_observer(self) -> PoolObserver:
        return PoolObserver(
            self.views,
            self.labs,
            self.instance_view,
            self.blueprints,
            clock=self.clock,
            tuning=self.settings.pools,
        )

    @cached_property
    def exporter_sets(self) -> ExporterSetReconciler:
        return ExporterSetReconciler(
            self.objects,
            self.views,
            self.pool_observer,
            nudge=self.member_changed,
            supply_changed=self.supply_changed,
            clock=self.clock,
            events=self.events,
            chance=self.chance,
        )

    @property
    def _alone(self) -> bool:
        """Whether all pools are ours, even those whose provisioner is not in this process."""
        return self.role is Role.WHOLE

    # Access control, where the API server is our own

    @cached_property
    def access_index(self) -> AccessIndex:
        """All roles and bindings, which authorize requests."""
        index = AccessIndex()
        self.views[rbac.Role].listen(index.observe_role)
        self.views[rbac.ClusterRole].listen(index.observe_role)
        self.views[rbac.RoleBinding].listen(index.observe_binding)
        self.views[rbac.ClusterRoleBinding].listen(index.observe_binding)
        return index

    # Running

    @contextlib.asynccontextmanager
    async def running(self, controllers: Iterable[MakeController]) -> AsyncIterator[None]:
        """Run these controllers while the context is open; a lab runs once."""
        assert not self.started, "a restarted process is a new lab"
        made = [make(self) for make in controllers]
        loops = {
            controller.name: controller.loop(
                clock=self.clock, retry=self.retry, faults=self.views.faults
            )
            for controller in made
        }
        assert len(loops) == len(made), "every controller has a name of its own"
        parts = {name: loop.run for name, loop in loops.items()}
        if self.role is not Role.POOLS:
            parts["sessions"] = self.sessions.run
        self.started = True
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(self.views.run()),
                tasks.create_task(supervise("events", self.events.run, retry=self.retry)),
            ]
            # A decision before the views are complete would end leases that were not seen yet,
            # and create members that exist.
            await self.views.synced()
            running += [
                tasks.create_task(supervise(name, run, retry=self.retry))
                for name, run in parts.items()
            ]
            try:
                yield
            finally:
                for task in running:
                    task.cancel()


MakeController = Callable[[Lab], Controller[Any]]
"""Makes a controller from the shared parts of its process."""


def scopes_of(namespace: str, watched: str, *, bundles: bool = False) -> dict[type[Kind], Scope]:
    """What is watched of kinds that contain many unrelated objects.

    ``bundles``: also ConfigMaps that classes may refer to, not only our own.
    """
    own = "" if bundles else f"metadata.name={authority.NAME}"
    scopes: dict[type[Kind], Scope] = {
        CoordinationLease: Scope(namespace=namespace, labels=ROUTER_LABEL),
        # Neither service account tokens nor Helm releases.
        Secret: Scope(namespace=watched, fields="type=Opaque"),
        ConfigMap: Scope(namespace=watched, fields=own),
        Pod: Scope(namespace=watched),
    }
    if watched:
        scopes[Namespace] = Scope(fields=f"metadata.name={watched}")
    return scopes
