"""Leases while the wall clock is set by hours: none lasts too long, and none begins too early."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from bullpen.api.kinds.exporter import ExporterStatusValue
from bullpen.api.meta import LocalObjectReference
from bullpen.core.exporters import presence
from support.lab_world import STUCK_AFTER, LabWorld

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
PROMPT_SECONDS = 2.0
"""An overdue lease ends within this time."""


@pytest.fixture
def world() -> LabWorld:
    return LabWorld()


async def ends_after(world: LabWorld, name: str, seconds: float) -> None:
    """The lease goes on until ``seconds`` from now and ends promptly then."""
    await asyncio.sleep(seconds - 0.5)
    assert not world.lease(name).status.ended
    await asyncio.sleep(0.5 + PROMPT_SECONDS)
    assert world.lease(name).status.ended


def test_a_lease_that_a_clock_set_forwards_makes_overdue_ends_at_once(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.make_lease("one", duration=30 * MINUTE)
            await world.assigned("one")
            world.wall.jump(HOUR)
            await asyncio.sleep(PROMPT_SECONDS)
            assert await world.ended("one") == "Expired"

    world.run(story)


def test_a_clock_that_is_set_back_makes_no_lease_longer(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.make_lease("one", duration=MINUTE)
            await world.assigned("one")
            world.wall.jump(-HOUR)
            await ends_after(world, "one", 60)

    world.run(story)


def test_a_lease_ends_in_time_when_the_clock_was_set_back_and_forth(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            booked = world.wall.now() + MINUTE
            await world.make_lease("one", duration=None, end_time=booked)
            await world.assigned("one")
            world.wall.jump(-HOUR)
            await asyncio.sleep(30)
            world.wall.jump(HOUR)
            await ends_after(world, "one", 30)

    world.run(story)


def test_a_lease_that_began_while_the_clock_was_ahead_lasts_as_long_as_asked(
    world: LabWorld,
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            world.wall.jump(40 * MINUTE)
            await world.make_lease("one", duration=MINUTE)
            await world.assigned("one")
            await asyncio.sleep(10)
            world.wall.jump(-40 * MINUTE)
            await ends_after(world, "one", 50)

    world.run(story)


def test_an_extended_lease_is_extended_in_steady_time_too(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.make_lease("one", duration=MINUTE)
            await world.assigned("one")
            world.wall.jump(-HOUR)
            await asyncio.sleep(30)
            await world.edit_lease("one", duration=2 * MINUTE)
            await ends_after(world, "one", 90)

    world.run(story)


def test_a_booked_lease_that_came_due_waits_again_after_the_clock_was_set_back(
    world: LabWorld,
) -> None:
    """It was waiting for an exporter when the clock returned, and got the next free one."""

    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.make_lease("now", duration=10 * HOUR)
            await world.assigned("now")
            begin = world.wall.now() + 30 * MINUTE
            await world.make_lease("booked", begin_time=begin)
            await asyncio.sleep(1)
            world.wall.jump(40 * MINUTE)
            await asyncio.sleep(5)
            world.wall.jump(-40 * MINUTE)
            await asyncio.sleep(5)
            await world.edit_lease("now", release=True)
            await asyncio.sleep(60)
            assert world.lease("booked").status.exporter_ref is None
            await asyncio.sleep(30 * 60)
            assert world.lease("booked").status.exporter_ref == LocalObjectReference(name="e1")

    world.run(story)


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "back"])
def test_an_exporter_is_stuck_after_its_time_whatever_the_clock_was_set_to(
    world: LabWorld, step: timedelta
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            await player.report(ExporterStatusValue.AFTER_LEASE_HOOK)
            await asyncio.sleep(1)
            world.wall.jump(step)
            await asyncio.sleep(STUCK_AFTER.total_seconds() - 10)
            assert not presence.stuck(world.exporter())
            await asyncio.sleep(15)
            assert presence.stuck(world.exporter())

    world.run(story)
