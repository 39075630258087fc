"""A lab with pools and everything in it but gRPC and machines, under virtual time.

The objects, the controllers and the fake provisioner are the real ones. Exporters are
played: each registers when its instance runs, serves the leases it gets, and goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any

from bullpen.api.exporter_template import Template, TemplateMetadata
from bullpen.api.fields import Kind
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.core import Event
from bullpen.api.kinds.exporter import Exporter, ExporterStatus, ExporterStatusValue
from bullpen.api.kinds.exporterset import ExporterSet, ExporterSetSpec, ExporterSetStatus
from bullpen.api.kinds.lease import Lease, LeaseSpec
from bullpen.api.kinds.virtualtargetclass import VirtualTargetClass, VirtualTargetClassSpec
from bullpen.api.meta import Condition, LabelSelector, LocalObjectReference, ObjectMeta
from bullpen.app import controllers
from bullpen.app.lab import Lab, LabSettings, MakeController
from bullpen.app.sources import Sources
from bullpen.controllers.exporters.presence_reconciler import Connections
from bullpen.controllers.object_edit import change, change_status
from bullpen.controllers.views import Views
from bullpen.core import conditions
from bullpen.core.conditions import condition
from bullpen.core.exporters import presence
from bullpen.errors import NotFound
from bullpen.kit.clock import VirtualClock
from bullpen.kit.ids import RandomIds
from bullpen.placements.memory_disks import MemoryDiskStorage
from bullpen.provisioners.base import InstancePhase, Key
from bullpen.provisioners.fake import NAME, FakeProvisioner, Faults
from bullpen.registry.garbage import GarbageCollector
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.options import DeleteOptions
from bullpen.registry.registry import Registry
from bullpen.runtime.controller import Controller, every_change
from bullpen.runtime.informer import key_of
from bullpen.runtime.loop import Outcome
from bullpen.sim import virtual_time
from bullpen.sim.keys import cheap_keys
from bullpen.sim.virtual_time import SkewedClock
from bullpen.store.journaled import MemoryStore
from support.lab_world import stored_lease

NAMESPACE = "default"
LABELS = {"board": "qemu"}
BOOT = Faults(boot_seconds=(2.0, 4.0))
CONTROLLERS: tuple[MakeController, ...] = (
    controllers.credentials,
    controllers.exporters,
    controllers.leases,
    controllers.lease_retention,
    controllers.claims,
    *controllers.POOLS,
)


class Players:
    """Plays the exporters of instances that run."""

    name = "players"

    def __init__(self, world: World) -> None:
        self._world = world
        self._serving: set[Key] = set()
        self._connected: set[Key] = set()
        self.mute: Callable[[str], bool] = lambda name: False
        """Which exporters never say a word."""

    async def reconcile(self, key: Key) -> Outcome:
        world = self._world
        exporter = world.views.exporters.get(*key)
        machine = world.provisioner._machines.get(key)
        up = machine is not None and machine.instance.phase is InstancePhase.RUNNING
        if exporter is None or not up or self.mute(key[1]):
            self._hang_up(key)
            return Outcome()
        assert machine is not None
        if machine.instance.owner_uid != exporter.metadata.uid:
            return Outcome()
        with contextlib.suppress(NotFound, KeyError):
            # It may be gone between two of its words.
            await self._play(key, exporter)
        return Outcome()

    async def _play(self, key: Key, exporter: Exporter) -> None:
        world = self._world
        if key not in self._connected:
            self._connected.add(key)
            world.connections.opened(key)
            await self._register(exporter)
            await self._report(exporter, ExporterStatusValue.AVAILABLE)
        leased = exporter.status.lease_ref is not None
        if leased and key not in self._serving:
            self._serving.add(key)
            world.provisioner.begin_lease(key)
            await self._report(exporter, ExporterStatusValue.LEASE_READY)
        elif not leased and key in self._serving:
            self._serving.discard(key)
            await self._report(exporter, ExporterStatusValue.AVAILABLE)
            world.provisioner.end_lease(key)

    def _hang_up(self, key: Key) -> None:
        if key in self._connected:
            self._connected.discard(key)
            self._serving.discard(key)
            self._world.connections.closed(key, unreachable=False)
            self._world.lab.presence_changed(key)

    async def _register(self, exporter: Exporter) -> None:
        """As the service does it: labels that are Jumpstarter's own are the exporter's to set."""
        world, now = self._world, self._world.wall.now()
        kept = {
            k: v
            for k, v in exporter.metadata.labels.items()
            if not k.startswith("jumpstarter.dev/")
        }

        def stripped(found: Exporter) -> Exporter:
            return replace(found, metadata=replace(found.metadata, labels=kept))

        def registered(found: Exporter) -> ExporterStatus:
            said = condition(
                found.status.conditions,
                "Registered",
                status=True,
                reason="Register",
                generation=found.metadata.generation,
                now=now,
            )
            return replace(found.status, conditions=said)

        changed = await change(world.objects, world.views.exporters, exporter, stripped)
        await change_status(world.objects, world.views.exporters, changed, registered)

    async def _report(self, exporter: Exporter, value: ExporterStatusValue) -> None:
        world, now = self._world, self._world.wall.now()
        newest = world.views.exporters.get(*key_of(exporter)) or exporter
        await change_status(
            world.objects,
            world.views.exporters,
            newest,
            lambda found: presence.reported(found, value=value, message="", now=now),
        )


class World:
    """One home: objects that stay, machines that stay, and a service that may be restarted."""

    views: Views
    connections: Connections
    lab: Lab
    players: Players

    def __init__(
        self,
        *,
        seed: int = 7,
        faults: Faults = BOOT,
        instances_max: int | None = None,
        provisioner: FakeProvisioner | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.wall = SkewedClock(self.clock)
        """The clock of the service, which a story may set."""

        self.chance = random.Random(seed)
        ids = RandomIds(random.Random(seed))
        self.sources = Sources(clock=self.wall, ids=ids, chance=self.chance)
        self.registry = Registry(MemoryStore(), clock=self.wall, ids=ids)
        self.objects = RegistryObjects(self.registry, manager="bullpen")
        self.disk_storage = MemoryDiskStorage()
        self.provisioner = provisioner or FakeProvisioner(
            self.chance, faults=faults, instances_max=instances_max
        )

    # Running it

    def run(self, story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        """Tell a story under virtual time, with the service running."""

        async def served(world: World) -> None:
            async with world.service():
                await story(world)

        self.run_without_service(served)

    def run_without_service(self, story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        """The same for a story that starts and stops the service itself."""
        virtual_time.run(self.clock, self._run(story))

    async def _run(self, story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        await self.registry.ensure_namespaces((NAMESPACE, "other"))
        client = Client(metadata=ObjectMeta(name="me", namespace=NAMESPACE))
        await self.objects.create(client)
        async with asyncio.TaskGroup() as tasks:
            collecting = tasks.create_task(GarbageCollector(self.registry).run())
            await story(self)
            collecting.cancel()

    @contextlib.asynccontextmanager
    async def service(self) -> AsyncIterator[None]:
        """The controllers, while the context is open."""
        self.lab = lab = Lab(
            self.objects,
            LabSettings(endpoint="lab:8082", ca_pem="PEM"),
            self.sources,
            keys=cheap_keys(self.wall),
            provisioners=(self.provisioner,),
            disk_storage=self.disk_storage,
        )
        self.views, self.connections = lab.views, lab.connections
        self.players = Players(self)
        async with lab.running((*CONTROLLERS, self._play)):
            yield

    def _play(self, lab: Lab) -> Controller[Key]:
        return Controller(
            reconciler=self.players,
            watches=(every_change(lab.views.exporters), self.provisioner.listen),
        )

    # Doing things in it

    async def until(
        self, holds: Callable[[], object], *, seconds: float = 60, what: str = ""
    ) -> None:
        """Wait until something holds, at most so long."""
        end = self.clock.now() + timedelta(seconds=seconds)
        while not holds():
            assert self.clock.now() < end, f"{what or holds} did not happen\n{self.picture()}"
            await asyncio.sleep(0.05)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def always(self, holds: Callable[[], object], *, seconds: float) -> None:
        """Look again and again for so long; it must hold every time."""
        end = self.clock.now() + timedelta(seconds=seconds)
        while self.clock.now() < end:
            assert holds(), self.picture()
            await asyncio.sleep(0.05)

    async def make_class(self, name: str = "fake", **spec: Any) -> VirtualTargetClass:
        made = VirtualTargetClassSpec(**{"provisioner": NAME, **spec})
        meta = ObjectMeta(name=name, namespace=NAMESPACE)
        return await self.objects.create(VirtualTargetClass(metadata=meta, spec=made))

    async def make_set(
        self, name: str = "qemu", *, labels: dict[str, str] | None = None, **spec: Any
    ) -> ExporterSet:
        wanted = labels or LABELS
        fields: dict[str, Any] = {
            "virtual_target_class_name": "fake",
            "selector": LabelSelector(match_labels=wanted),
            "template": Template(metadata=TemplateMetadata(labels=wanted)),
            **spec,
        }
        made = ExporterSet(
            metadata=ObjectMeta(name=name, namespace=NAMESPACE), spec=ExporterSetSpec(**fields)
        )
        return await self.objects.create(made)

    async def edit_set(self, name: str = "qemu", **spec: Any) -> None:
        found = await self.objects.get(ExporterSet, NAMESPACE, name)
        await change(
            self.objects,
            self.views.sets,
            found,
            lambda newest: replace(newest, spec=replace(newest.spec, **spec)),
        )

    async def edit_class(self, name: str = "fake", **spec: Any) -> None:
        found = await self.objects.get(VirtualTargetClass, NAMESPACE, name)
        await self.objects.update(replace(found, spec=replace(found.spec, **spec)))

    async def remove(self, kind: type[Kind], name: str) -> None:
        """Delete an object whatever state it is in."""
        resource = self.registry.resources.of(kind)
        await self.registry.delete(resource, NAMESPACE, name, DeleteOptions())

    async def ask(self, name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> None:
        """A client asks for a target."""
        fields: dict[str, Any] = {
            "client_ref": LocalObjectReference(name="me"),
            "selector": LabelSelector(match_labels=labels if labels is not None else LABELS),
            "duration": timedelta(hours=1),
            **spec,
        }
        meta = ObjectMeta(name=name, namespace=NAMESPACE)
        await self.objects.create(Lease(metadata=meta, spec=LeaseSpec(**fields)))

    async def release(self, name: str) -> None:
        found = await self.objects.get(Lease, NAMESPACE, name)
        await change(
            self.objects,
            self.views.leases,
            found,
            lambda newest: replace(newest, spec=replace(newest.spec, release=True)),
        )

    # Looking at it

    def status(self, name: str = "qemu") -> ExporterSetStatus:
        found = self.views.sets.get(NAMESPACE, name)
        assert found is not None
        return found.status

    def condition(self, type_: str, name: str = "qemu") -> Condition:
        found = conditions.get(self.status(name).conditions, type_)
        assert found is not None, f"{name} says nothing about {type_}"
        return found

    def reason(self, type_: str, name: str = "qemu") -> str:
        """The reason of a condition; empty as long as nothing was said."""
        found = conditions.get(self.status(name).conditions, type_)
        return found.reason if found is not None else ""

    def members(self, name: str = "qemu") -> list[Exporter]:
        found = self.views.exporters.all(NAMESPACE)
        mine = [e for e in found if any(r.name == name for r in e.metadata.owner_references)]
        return sorted(mine, key=lambda e: (len(e.metadata.name), e.metadata.name))

    def names(self, name: str = "qemu") -> list[str]:
        return [e.metadata.name for e in self.members(name)]

    def instances(self) -> list[str]:
        return sorted(name for _, name in self.provisioner._machines)

    def lease(self, name: str) -> Lease:
        """The lease as the view has it; the view leaves out ended leases, which are stored."""
        found = self.views.leases.get(NAMESPACE, name)
        return found or stored_lease(self.registry, NAMESPACE, name)

    def got(self, lease: str) -> str:
        """The exporter a lease has or had."""
        ref = self.lease(lease).status.exporter_ref
        return ref.name if ref else ""

    def held(self, lease: str) -> str:
        """The uid of what a lease got: names are used again."""
        found = self.views.exporters.get(NAMESPACE, self.got(lease))
        return found.metadata.uid if found is not None else ""

    def uids(self, name: str = "qemu") -> set[str]:
        return {member.metadata.uid for member in self.members(name)}

    def waits(self, lease: str) -> str:
        """What a waiting lease is told; empty if it does not wait."""
        found = conditions.get(self.lease(lease).status.conditions, "Pending")
        return found.message if found is not None and found.status == "True" else ""

    def available(self, count: int, name: str = "qemu") -> bool:
        return self.status(name).available_replicas == count

    async def events(self, reason: str = "") -> list[Event]:
        await self.sleep(0.1)
        found = (await self.objects.list(Event)).items
        return [e for e in found if not reason or e.reason == reason]

    def picture(self) -> str:
        """What is there, for a failure that explains itself."""
        lines = [f"at {self.clock.now().isoformat()}"]
        lines += [f"set {s.metadata.name}: {s.status}" for s in self.views.sets.all()]
        lines += [
            f"exporter {e.metadata.name}: {e.spec} {e.status}" for e in self.views.exporters.all()
        ]
        lines += [f"lease {x.metadata.name}: {x.status}" for x in self.views.leases.all()]
        lines += [f"instance {m.instance}" for m in self.provisioner._machines.values()]
        return "\n".join(lines)
