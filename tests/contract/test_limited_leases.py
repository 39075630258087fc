"""Leases that a policy makes shorter than they ask for, and how their clients are told."""

from __future__ import annotations

from datetime import timedelta

from bullpen.api import codec
from bullpen.api.kinds.accesspolicy import ExporterAccessPolicy
from bullpen.api.kinds.core import Event
from bullpen.core import conditions
from support.lab_world import SPACE, LabWorld

HOUR = timedelta(hours=1)


async def limit(world: LabWorld, duration: str) -> None:
    """No lease may last longer than ``duration``."""
    rule = {"from": [{"clientSelector": {}}], "maximumDuration": duration}
    document = {
        "metadata": {"name": "limit", "namespace": SPACE},
        "spec": {"exporterSelector": {}, "policies": [rule]},
    }
    await world.objects.create(codec.decode(ExporterAccessPolicy, document))
    await world.settle()


async def told(world: LabWorld, lease: str) -> list[str]:
    """The reasons of the events about the limit of a lease."""
    found = (await world.objects.list(Event)).items
    limited = conditions.get(world.lease(lease).status.conditions, "Limited")
    assert limited is not None
    return [
        event.reason
        for event in found
        if event.involved_object.name == lease and event.reason == limited.reason
    ]


def test_a_lease_that_is_extended_beyond_its_limit_ends_there_and_says_so_once() -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await limit(world, "1h")
            await world.make_lease("one", duration=HOUR / 2)
            await world.assigned("one")
            assert conditions.get(world.lease("one").status.conditions, "Limited") is None
            begin = world.lease("one").status.begin_time
            assert begin is not None
            await world.edit_lease("one", duration=3 * HOUR)
            await world.until(
                lambda: conditions.holds(world.lease("one").status.conditions, "Limited")
            )
            await world.settle()
            assert len(await told(world, "one")) == 1
            assert await world.ended("one", seconds=2 * HOUR.total_seconds()) == "Expired"
            assert timedelta(0) <= world.clock.now() - begin - HOUR < timedelta(seconds=2)

    LabWorld().run(story)


def test_a_lease_without_a_limit_is_told_nothing() -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await limit(world, "2h")
            await world.make_lease("one", duration=HOUR)
            await world.assigned("one")
            await world.edit_lease("one", duration=HOUR / 2)
            await world.settle()
            assert conditions.get(world.lease("one").status.conditions, "Limited") is None
            found = (await world.objects.list(Event)).items
            about = [event.reason for event in found if event.involved_object.name == "one"]
            assert about == ["LeaseAssigned"]

    LabWorld().run(story)
