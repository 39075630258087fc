"""Leases, exporters and the services in front of them, without gRPC, under virtual time.

The objects, controllers and services are the real ones; exporters and clients are played
by calling the services as gRPC would.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any

from bullpen.api.client import Client
from bullpen.api.exporter import Device, Exporter, ExporterStatusValue
from bullpen.api.lease import Lease, LeaseSpec
from bullpen.api.meta import LabelSelector, LocalObjectReference, ObjectMeta
from bullpen.controllers.exporters.presence_reconciler import Connections, PresenceReconciler
from bullpen.controllers.faults import FaultReconciler
from bullpen.controllers.labs import Labs
from bullpen.controllers.leases.lease_reconciler import LeaseReconciler, watch_namespaces
from bullpen.controllers.leases.session_recorder import SessionRecorder
from bullpen.controllers.views import Views
from bullpen.core.exporters.conversation import Notice
from bullpen.core.leases.quotas import Quotas
from bullpen.errors import Conflict
from bullpen.identity.tokens import Tickets
from bullpen.kit.backoff import Backoff
from bullpen.kit.clock import VirtualClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.runtime.events import Events
from bullpen.runtime.faults import ObjectKey
from bullpen.runtime.informer import Key, key_of
from bullpen.runtime.loop import ReconcileLoop
from bullpen.services.dialing import Switchboard
from bullpen.services.exporters import Exporters
from bullpen.services.leases import Leases
from bullpen.services.quotas import Gatekeeper
from bullpen.services.routing import Router, Routers
from bullpen.services.signals import Signals
from bullpen.sim import virtual_time
from bullpen.store.memory import MemoryStore

SPACE = "default"
LABELS = {"board": "x"}
BACKOFF = Backoff(first=timedelta(milliseconds=20), cap=timedelta(seconds=30))
STUCK_AFTER = timedelta(minutes=5)
RETENTION = timedelta(hours=24)

Story = Callable[["LabWorld"], Coroutine[Any, Any, None]]


class LabWorld:
    """Objects that stay, and a service that may be stopped and started."""

    views: Views
    connections: Connections
    leases: Leases
    exporters: Exporters
    switchboard: Switchboard
    sessions: SessionRecorder

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.ids = RandomIds(random.Random(7))
        self.quotas = Quotas()
        self.registry = Registry(MemoryStore(), clock=self.clock, ids=self.ids)
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
        retry = functools.partial(BACKOFF.delay, chance=random.Random(7))
        objects, clock = self.objects, self.clock
        self.views = views = Views.of(objects, retry=retry)
        events = Events(objects, clock=clock, ids=self.ids, component="bullpen")
        self.connections = Connections(started=clock.now())
        labs = Labs(objects, views, connected=self.connections.connected, retention=RETENTION)
        self.connections.listen(labs.connection_changed)
        signals = Signals()
        presence: ReconcileLoop[Key] = ReconcileLoop(
            PresenceReconciler(
                objects,
                views,
                self.connections,
                clock=clock,
                events=events,
                stuck_after=STUCK_AFTER,
            ),
            clock=clock,
            retry=retry,
        )
        reconciler = LeaseReconciler(
            objects, views, labs, clock=clock, events=events, supplies=lambda namespace: ()
        )
        leasing: ReconcileLoop[str] = ReconcileLoop(reconciler, clock=clock, retry=retry)
        watch_namespaces(views, labs, leasing.add)
        faults: ReconcileLoop[ObjectKey] = ReconcileLoop(
            FaultReconciler(objects, views.faults, clock=clock, events=events),
            clock=clock,
            retry=retry,
        )
        views.faults.listen(faults.add)
        self.sessions = SessionRecorder(
            objects, views.leases, clock=clock, events=events, retry=retry
        )

        def exporter_changed(old: Exporter | None, new: Exporter | None) -> None:
            value = new or old
            assert value is not None
            presence.add(key_of(value))

        def presence_changed(key: Key) -> None:
            presence.add(key)
            leasing.add(key[0])

        views.exporters.listen(exporter_changed)
        gatekeeper = Gatekeeper(labs, self.quotas, monotonic=asyncio.get_running_loop().time)
        self.leases = Leases(
            objects, views, gatekeeper=gatekeeper, signals=signals, clock=clock, ids=self.ids
        )
        self.exporters = Exporters(
            objects,
            views,
            connections=self.connections,
            presence_changed=presence_changed,
            signals=signals,
            clock=clock,
            events=events,
        )
        routers = Routers(clock=clock)
        routers.set_local(Router("router:1", lambda: 0))
        self.switchboard = Switchboard(
            views,
            tickets=Tickets(b"k" * 32),
            routers=routers,
            signals=signals,
            clock=clock,
            ids=self.ids,
        )
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(part.run()) for part in (views, events)]
            await views.synced()
            running += [
                tasks.create_task(loop.run()) for loop in (presence, leasing, faults, self.sessions)
            ]
            try:
                yield
            finally:
                for task in running:
                    task.cancel()

    # Looking at it

    def lease(self, name: str) -> Lease:
        found = self.views.leases.get(SPACE, name)
        assert found is not None, f"there is no lease {name}"
        return found

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

    async def ended(self, name: str) -> str:
        """The reason why the lease is over, once it is."""
        await self.until(lambda: self.lease(name).status.ended)
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

        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """A Status stream, open until the block ends or ``hang_up``."""
        async with asyncio.TaskGroup() as tasks:
            stream = self._world.exporters.status(self._world.exporter(self.name))
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
