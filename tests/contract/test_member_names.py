"""Names and instances that are in the way of a pool: it says so, and goes on without them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.meta import ObjectMeta
from bullpen.controllers.pools.exporterset_reconciler import NAMES_LOOK
from bullpen.core.targets.instances import REMOVAL_MAX
from bullpen.errors import Unreachable
from bullpen.provisioners.base import Key
from support.pool_world import BOOT, NAMESPACE, World

SOON = BOOT.boot_seconds[1] + NAMES_LOOK.total_seconds() + 1


def said(world: World) -> tuple[str, str]:
    found = world.condition("Degraded")
    return found.reason, found.message


async def make_pool(world: World) -> None:
    await world.make_class()
    await world.make_set(min_replicas=2, max_replicas=2)


def test_a_set_that_is_recreated_waits_for_the_members_of_its_predecessor() -> None:
    async def story(world: World) -> None:
        await make_pool(world)
        await world.until(lambda: world.available(2))
        gate, remove = asyncio.Event(), world.provisioner.remove

        async def slow(key: Key) -> None:
            await gate.wait()
            await remove(key)

        world.provisioner.remove = slow  # type: ignore[method-assign]
        await world.remove(ExporterSet, "qemu")
        await world.sleep(1)
        await world.make_set(min_replicas=2, max_replicas=2)
        await world.until(lambda: world.reason("Degraded") == "NamesTaken", seconds=5)
        assert said(world)[1] == (
            "2 member names are in use: qemu-0 is an exporter that is still being deleted"
        )
        gate.set()
        await world.until(lambda: world.available(2), seconds=BOOT.boot_seconds[1] + 1)
        await world.until(lambda: world.reason("Degraded") == "Healthy", seconds=1)

    World().run(story)


@pytest.mark.parametrize("released", [False, True], ids=["foreign", "released"])
def test_an_exporter_outside_the_set_keeps_the_name_until_it_goes(released: bool) -> None:
    async def story(world: World) -> None:
        if released:
            await make_pool(world)
            await world.until(lambda: world.available(2))
            member = await world.objects.get(Exporter, NAMESPACE, "qemu-0")
            meta = replace(member.metadata, owner_references=())
            await world.objects.update(replace(member, metadata=meta))
        else:
            meta = ObjectMeta(name="qemu-0", namespace=NAMESPACE)
            await world.objects.create(Exporter(metadata=meta))
            await make_pool(world)
        await world.until(lambda: world.reason("Degraded") == "NamesTaken", seconds=5)
        assert "qemu-0 is an exporter outside this set; delete it" in said(world)[1]
        await world.remove(Exporter, "qemu-0")
        await world.until(lambda: world.available(2), seconds=SOON)
        assert world.reason("Degraded") == "Healthy"

    World().run(story)


def test_a_node_that_never_answers_costs_its_place_and_no_blame() -> None:
    async def story(world: World) -> None:
        await make_pool(world)
        await world.until(lambda: world.available(2))
        remove, answers = world.provisioner.remove, False

        async def unreachable(key: Key) -> None:
            if key[1] == "qemu-0" and not answers:
                raise Unreachable("node n1 does not answer")
            await remove(key)

        world.provisioner.remove = unreachable  # type: ignore[method-assign]
        await world.ask("last")
        await world.until(lambda: world.got("last"))
        await world.release("last")
        await world.until(lambda: world.reason("Degraded") == "RemovalFailing", seconds=60)
        assert said(world)[1] == (
            "1 member keeps its place, because qemu-0 cannot be removed: node n1 does not answer"
        )
        longest = REMOVAL_MAX + timedelta(minutes=2)
        await world.until(
            lambda: world.reason("Degraded") == "NamesTaken", seconds=longest.total_seconds()
        )
        assert said(world)[1] == (
            "1 member name is in use: qemu-0 has an instance that cannot be removed:"
            " node n1 does not answer"
        )
        await world.always(lambda: world.status().start_failures is None, seconds=300)
        answers = True
        await world.until(lambda: world.available(2), seconds=120)
        assert world.reason("Degraded") == "Healthy"

    World().run(story)
