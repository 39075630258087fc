"""Leases, exporters and the services in front of them, without gRPC, under virtual time.

The objects, controllers and services are the real ones; exporters and clients are played
by calling the services as gRPC would.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any

from bullpen.api import codec
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.exporter import Device, Exporter, ExporterStatusValue
from bullpen.api.kinds.lease import Lease, LeaseSpec
from bullpen.api.meta import LabelSelector, LocalObjectReference, ObjectMeta
from bullpen.app import controllers
from bullpen.app.lab import Lab, LabSettings, Role
from bullpen.app.services import Services
from bullpen.app.sources import Sources
from bullpen.controllers.exporters.presence_reconciler import Connections
from bullpen.controllers.leases.session_recorder import SessionRecorder
from bullpen.controllers.views import Views
from bullpen.core.exporters.conversation import Notice
from bullpen.core.leases.quotas import Quotas
from bullpen.core.notifications import Webhook
from bullpen.errors import Conflict
from bullpen.kit.clock import VirtualClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.services.claims import Claims
from bullpen.services.dialing import Switchboard
from bullpen.services.exporters import Exporters
from bullpen.services.extensions import Extensions
from bullpen.services.grpc.claims import ClaimServicer
from bullpen.services.grpc.client import ClientServicer
from bullpen.services.grpc.controller import ControllerServicer
from bullpen.services.leases import Leases
from bullpen.services.peers import Peer
from bullpen.services.routing import Router
from bullpen.sim import virtual_time
from bullpen.sim.keys import cheap_keys
from bullpen.sim.virtual_time import SkewedClock
from bullpen.store.journaled import MemoryStore

SPACE = "default"
LABELS = {"board": "x"}
SETTINGS = LabSettings(endpoint="lab:8082", ca_pem="PEM")
STUCK_AFTER, RETENTION = SETTINGS.stuck_after, SETTINGS.retention
CONTROLLERS = (
    controllers.faults,
    controllers.exporters,
    controllers.leases,
    controllers.lease_retention,
    controllers.claims,
    controllers.webhooks,
)
"""The controllers of leases and exporters; its stories need no credentials."""


def stored_lease(registry: Registry, namespace: str, name: str) -> Lease:
    value = registry.get(registry.resources.of(Lease), namespace, name)
    return codec.decode(Lease, registry.document(value))


Story = Callable[["LabWorld"], Coroutine[Any, Any, None]]


class LabWorld:
    """Objects that stay, and a service that may be stopped and started."""

    lab: Lab
    views: Views
    connections: Connections
    leases: Leases
    exporters: Exporters
    switchboard: Switchboard
    claims: ClaimServicer
    extensions: Extensions
    client_calls: ClientServicer
    controller_calls: ControllerServicer
    claim_service: Claims
    sessions: SessionRecorder

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.wall = SkewedClock(self.clock)
        """The clock of the service, which a story may set."""

        self.sources = Sources(
            clock=self.wall, ids=RandomIds(random.Random(7)), chance=random.Random(7)
        )
        self.quotas = Quotas()
        self.preemption = SETTINGS.preemption
        self.unmatched_wait = SETTINGS.unmatched_wait
        self.webhooks: tuple[Webhook, ...] = ()
        self.registry = Registry(MemoryStore(), clock=self.wall, ids=self.sources.ids)
        self.objects = RegistryObjects(self.registry, manager="bullpen")

    # Running it

    def run(self, story: Story) -> None:
        async def served(world: LabWorld) -> None:
            async with world.service():
                await story(world)

        self.run_without_service(served)

    def run_without_service(self, story: Story) -> None:
        virtual_time.run(self.clock, self._run(story))

    async def _run(self, story: Story) -> None:
        await self.registry.ensure_namespaces((SPACE,))
        for name in ("alice", "bob"):
            await self.objects.create(Client(metadata=ObjectMeta(name=name, namespace=SPACE)))
        await story(self)

    @contextlib.asynccontextmanager
    async def service(self) -> AsyncIterator[None]:
        settings = replace(
            SETTINGS,
            quotas=self.quotas,
            preemption=self.preemption,
            unmatched_wait=self.unmatched_wait,
            webhooks=self.webhooks,
        )
        lab = Lab(
            self.objects, settings, self.sources, role=Role.LEASES, keys=cheap_keys(self.wall)
        )
        self.lab = lab
        self.views, self.connections, self.sessions = lab.views, lab.connections, lab.sessions
        services = Services.of(lab)
        self.leases, self.exporters = services.leases, services.exporters
        self.switchboard, self.claims = services.switchboard, services.claim_calls
        self.client_calls, self.controller_calls = services.client, services.controller
        self.extensions = services.extensions
        self.claim_service = services.claims
        lab.routers.set_local(Router("router:1", lambda: 0))
        async with lab.running(CONTROLLERS):
            yield

    # Looking at it

    def lease(self, name: str) -> Lease:
        """The lease as the view has it; the view leaves out ended leases, which are stored."""
        found = self.views.leases.get(SPACE, name)
        return found or stored_lease(self.registry, SPACE, name)

    def exporter(self, name: str = "e1") -> Exporter:
        found = self.views.exporters.get(SPACE, name)
        assert found is not None, f"there is no exporter {name}"
        return found

    def client(self, name: str = "alice") -> Client:
        found = self.views.clients.get(SPACE, name)
        assert found is not None, f"there is no client {name}"
        return found

    async def until(self, holds: Callable[[], object], *, seconds: float = 60) -> None:
        """Wait until something holds, at most so long."""
        end = self.clock.now() + timedelta(seconds=seconds)
        while not holds():
            assert self.clock.now() < end, f"it did not happen within {seconds} s"
            await asyncio.sleep(0.01)

    async def settle(self) -> None:
        """Long enough for everything that needs no time of its own to be done."""
        await asyncio.sleep(0.2)

    # Doing things in it

    async def make_exporter(self, name: str = "e1", **labels: str) -> Exporter:
        meta = ObjectMeta(name=name, namespace=SPACE, labels=labels or LABELS)
        return await self.objects.create(Exporter(metadata=meta))

    async def make_lease(self, name: str, *, client: str = "alice", **spec: Any) -> Lease:
        fields: dict[str, Any] = {
            "client_ref": LocalObjectReference(name=client),
            "selector": LabelSelector(match_labels=LABELS),
            "duration": timedelta(hours=1),
            **spec,
        }
        made = Lease(metadata=ObjectMeta(name=name, namespace=SPACE), spec=LeaseSpec(**fields))
        return await self.objects.create(made)

    async def edit_lease(self, name: str, **spec: Any) -> None:
        """As ``kubectl edit`` would: again if somebody else was quicker."""
        for _ in range(5):
            found = await self.objects.get(Lease, SPACE, name)
            with contextlib.suppress(Conflict):
                await self.objects.update(replace(found, spec=replace(found.spec, **spec)))
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{name} kept changing")

    async def assigned(self, name: str) -> str:
        await self.until(lambda: self.lease(name).status.exporter_ref)
        ref = self.lease(name).status.exporter_ref
        assert ref is not None
        return ref.name

    async def ended(self, name: str, *, seconds: float = 60) -> str:
        """The reason why the lease is over, once it is."""
        await self.until(lambda: self.lease(name).status.ended, seconds=seconds)
        return self.lease(name).status.conditions[-1].reason

    @contextlib.asynccontextmanager
    async def player(self, name: str = "e1") -> AsyncIterator[Player]:
        """An exporter that registers and connects, and hears until the block ends."""
        if self.views.exporters.get(SPACE, name) is None:
            await self.make_exporter(name)
            await self.until(lambda: self.views.exporters.get(SPACE, name))
        player = Player(self, name)
        await self.exporters.register(
            self.exporter(name), labels={}, devices=(Device(uuid="0", labels={}),)
        )
        await player.report(ExporterStatusValue.AVAILABLE)
        async with player.connected():
            yield player


class Player:
    """An exporter's side of the conversation."""

    def __init__(self, world: LabWorld, name: str) -> None:
        self._world = world
        self.name = name
        self.heard: list[Notice] = []
        self.obeys = True
        """Whether it says what it does about its leases by itself."""

        self.peer = Peer()
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """A Status stream, open until the block ends or ``hang_up``."""
        async with asyncio.TaskGroup() as tasks:
            self.peer = Peer()
            stream = self._world.exporters.status(self._world.exporter(self.name), self.peer)
            self._task = tasks.create_task(self._listen(stream))
            await asyncio.sleep(0)
            try:
                yield
            finally:
                self.hang_up()

    def hang_up(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _listen(self, stream: AsyncGenerator[Notice, None]) -> None:
        async with contextlib.aclosing(stream):
            async for notice in stream:
                self.heard.append(notice)
                if self.obeys:
                    ready = ExporterStatusValue.LEASE_READY
                    idle = ExporterStatusValue.AVAILABLE
                    await self.report(ready if notice.leased else idle)

    async def report(self, value: ExporterStatusValue, message: str = "") -> None:
        exporter = self._world.exporter(self.name)
        await self._world.exporters.report(exporter, value=value, message=message)

    @property
    def told(self) -> list[str]:
        """The names of leases it was told of, empty for none."""
        return [notice.lease for notice in self.heard]
