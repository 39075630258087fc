"""What is counted about leases, for metrics and the dashboard."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from bullpen.controllers.leases.lease_counter import Counted
from bullpen.core.leases.lease_figures import Assigned, Ended, Figure, Refused, Requested
from support.lab_world import SPACE, LabWorld

HOUR = timedelta(hours=1)


def counting(world: LabWorld) -> list[Figure]:
    """What is counted from now on."""
    found: list[Figure] = []

    def hear(counted: Counted) -> None:
        assert counted.namespace == SPACE
        found.append(counted.figure)

    world.lab.lease_counter.listen(hear)
    return found


def test_a_lease_that_is_served_at_once_and_one_that_waits() -> None:
    async def story(world: LabWorld) -> None:
        found = counting(world)
        async with world.player():
            await world.settle()
            await world.make_lease("one")
            await world.assigned("one")
            await world.settle()
            requested, assigned = found
            assert requested == Requested()
            assert isinstance(assigned, Assigned)
            assert assigned.exporter == "e1"
            found.clear()
            await world.make_lease("two")
            await asyncio.sleep(30)
            assert found == [Requested()]
            found.clear()
            await world.edit_lease("one", release=True)
            await world.assigned("two")
            await world.settle()
            over, second = found
            assert isinstance(over, Ended)
            assert (over.reason, over.held is not None) == ("Released", True)
            assert isinstance(second, Assigned)
            assert not second.at_once
            assert timedelta(seconds=30) <= second.waited < timedelta(seconds=32)

    LabWorld().run(story)


def test_a_lease_that_can_never_be_served_counts_as_refused_once() -> None:
    async def story(world: LabWorld) -> None:
        world.unmatched_wait = timedelta(0)
        async with world.service():
            found = counting(world)
            await world.make_lease("lost")
            await world.ended("lost")
            await world.settle()
            assert [one for one in found if isinstance(one, Refused)] == [Refused("NoAccess")]

    LabWorld().run_without_service(story)
