"""Provisioners in processes of their own: each looks after its pools and after no other."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

from bullpen.api.kinds.core import Event
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.virtualtargetclass import VirtualTargetClass
from bullpen.app import controllers
from bullpen.app.lab import Lab, LabSettings, Role
from bullpen.app.sources import Sources
from bullpen.core.targets.profiles import PROVISIONER
from bullpen.provisioners.base import Instance, InstanceSpec, Provisioner
from bullpen.provisioners.fake import FakeProvisioner
from bullpen.sim.keys import cheap_keys
from support.pool_world import BOOT, NAMESPACE, World


class Named(FakeProvisioner):
    """The fake one under a name of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(random.Random(name), faults=BOOT)
        self.name = name

    async def ensure(self, spec: InstanceSpec) -> Instance:
        return replace(await super().ensure(spec), provisioner=self.name)

    async def observe_all(self) -> tuple[Instance, ...]:
        return tuple(replace(found, provisioner=self.name) for found in await super().observe_all())

    @property
    def names(self) -> list[str]:
        return sorted(name for _, name in self._machines)


class Apart:
    """Two provisioners and one process that issues credentials, each with a view of its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.one, self.two = Named("one.example.com"), Named("two.example.com")
        self.told: list[str] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        sources = replace(self.world.sources, chance=random.Random(1))
        async with contextlib.AsyncExitStack() as stack:
            for provisioner in (self.one, self.two):
                lab = self._lab(sources, Role.POOLS, (provisioner,))
                await stack.enter_async_context(lab.running(controllers.POOLS))
            lab = self._lab(sources, Role.LEASES)
            self.distant = lab.supplies
            lab.supply_changed.listen(self.told.append)
            await stack.enter_async_context(lab.running((controllers.credentials,)))
            yield

    def _lab(self, sources: Sources, role: Role, provisioners: tuple[Provisioner, ...] = ()) -> Lab:
        return Lab(
            self.world.objects,
            LabSettings(endpoint="lab:8082", ca_pem="PEM"),
            sources,
            role=role,
            keys=cheap_keys(sources.clock),
            provisioners=provisioners,
        )

    async def members(self) -> dict[str, str]:
        found = (await self.world.objects.list(Exporter)).items
        return {e.metadata.name: e.metadata.annotations[PROVISIONER] for e in found}

    async def settled(self) -> None:
        await asyncio.sleep(10)


def told(story: Callable[[Apart], Awaitable[None]]) -> None:
    """Run one of the stories below."""

    async def tell(world: World) -> None:
        apart = Apart(world)
        async with apart.running():
            await story(apart)

    World().run_without_service(tell)


async def each_makes_its_own(apart: Apart) -> None:
    world = apart.world
    for name, provisioner in (("a", apart.one.name), ("b", apart.two.name)):
        await world.make_class(name, provisioner=provisioner)
        await world.make_set(
            name, labels={"pool": name}, virtual_target_class_name=name, min_replicas=2
        )
    await world.make_class("c", provisioner="nobody.example.com")
    await world.make_set("c", labels={"pool": "c"}, virtual_target_class_name="c", min_replicas=2)
    await apart.settled()
    members = await apart.members()
    assert len(members) == 4
    for maker in (apart.one, apart.two):
        assert maker.names == sorted(name for name, by in members.items() if by == maker.name)
    untouched = await world.objects.get(ExporterSet, NAMESPACE, "c")
    assert untouched.status.observed_generation == 0, "somebody else may yet come for it"
    said = {supply.name: supply.message for supply in apart.distant(NAMESPACE)}
    assert said["a"] == "pool a: 2 starting"
    assert said["c"] == "pool c is being set up"
    assert NAMESPACE in apart.told


async def a_set_changes_hands(apart: Apart) -> None:
    world = apart.world
    await world.make_class("a", provisioner=apart.one.name)
    await world.make_set(
        "a", labels={"pool": "a"}, virtual_target_class_name="a", min_replicas=2, max_replicas=4
    )
    await apart.settled()
    assert len(apart.one.names) == 2
    found = await world.objects.get(VirtualTargetClass, NAMESPACE, "a")
    given = replace(found, spec=replace(found.spec, provisioner=apart.two.name))
    await world.objects.update(given)
    await asyncio.sleep(timedelta(minutes=10).total_seconds())
    assert set((await apart.members()).values()) == {apart.two.name}
    assert not apart.one.names, "who made them has removed them"
    reasons = {event.reason for event in (await world.objects.list(Event)).items}
    assert "InstanceLeft" not in reasons


async def a_class_goes(apart: Apart) -> None:
    world = apart.world
    found = await world.make_class("a", provisioner=apart.one.name)
    await world.make_set("a", labels={"pool": "a"}, virtual_target_class_name="a", min_replicas=2)
    await apart.settled()
    members = await apart.members()
    await world.objects.delete(found)
    await apart.settled()
    assert await apart.members() == members, "nobody takes them for lost"
    owner = await world.objects.get(ExporterSet, NAMESPACE, "a")
    said = {c.type: c.reason for c in owner.status.conditions}
    assert said["Degraded"] == "VirtualTargetClassNotFound"


def test_each_makes_the_members_of_its_own_sets() -> None:
    told(each_makes_its_own)


def test_a_set_that_changes_hands_is_cleared_by_one_and_filled_by_the_other() -> None:
    told(a_set_changes_hands)


def test_a_set_without_its_class_stays_with_who_made_its_members() -> None:
    told(a_class_goes)
