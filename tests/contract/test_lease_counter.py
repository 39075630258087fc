"""What is counted about leases, for metrics and the dashboard."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from bullpen.api.kinds.exporter import ExporterStatusValue
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


def test_a_booked_lease_that_gets_its_exporter_late_waits_from_its_begin() -> None:
    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            await world.make_lease("held")
            await world.assigned("held")
            begin = world.clock.now() + HOUR / 2
            await world.make_lease("booked", begin_time=begin)
            found = counting(world)
            await world.settle()
            player.obeys = False
            await world.edit_lease("held", release=True)
            await asyncio.sleep((begin - world.clock.now()).total_seconds() + 20.5)
            await player.report(ExporterStatusValue.AVAILABLE)
            await world.assigned("booked")
            await world.settle()
            (late,) = [one for one in found if isinstance(one, Assigned)]
            assert timedelta(seconds=20.5) <= late.waited < timedelta(seconds=22), (
                "not half an hour"
            )

    LabWorld().run(story)


def test_a_booked_lease_that_gets_its_exporter_at_its_begin_did_not_wait() -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.make_lease("booked", begin_time=world.clock.now() + HOUR)
            found = counting(world)
            await world.until(
                lambda: world.lease("booked").status.exporter_ref, seconds=2 * HOUR.total_seconds()
            )
            await world.settle()
            (soon,) = [one for one in found if isinstance(one, Assigned)]
            assert soon.waited < timedelta(seconds=2)

    LabWorld().run(story)


def test_a_lease_that_never_had_an_exporter_was_held_for_no_time() -> None:
    async def story(world: LabWorld) -> None:
        found = counting(world)
        await world.make_exporter()
        await world.make_lease("one")
        await asyncio.sleep(5)
        await world.edit_lease("one", release=True)
        await world.ended("one")
        await world.settle()
        (over,) = [one for one in found if isinstance(one, Ended)]
        assert (over.reason, over.held) == ("Released", None)

    LabWorld().run(story)


def test_what_happened_before_a_restart_is_not_counted_again() -> None:
    async def story(world: LabWorld) -> None:
        async with world.service(), world.player():
            await world.make_lease("one")
            await world.assigned("one")
            await world.make_lease("two")
            await world.settle()
        await asyncio.sleep(60)
        async with world.service():
            found = counting(world)
            async with world.player():
                await asyncio.sleep(2)  # times of leases are whole seconds
                assert found == []
                await world.edit_lease("one", release=True)
                await world.assigned("two")
                await world.settle()
            over, later = found
            assert isinstance(over, Ended)
            assert over.held is not None
            assert over.held >= timedelta(seconds=60)
            assert isinstance(later, Assigned)
            assert later.waited >= timedelta(seconds=60)

    LabWorld().run_without_service(story)
