"""Online, offline, leaving and stuck, as an exporter's connection comes and goes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from bullpen.api.kinds.core import Event
from bullpen.api.kinds.exporter import ExporterStatusValue
from bullpen.core.conditions import get
from bullpen.core.exporters import presence
from support.lab_world import STUCK_AFTER, LabWorld

S = ExporterStatusValue
GRACE = presence.GRACE.total_seconds()
HOUR = timedelta(hours=1)


@pytest.fixture
def world() -> LabWorld:
    return LabWorld()


def online(world: LabWorld) -> bool:
    return presence.online(world.exporter())


async def reasons(world: LabWorld) -> list[str]:
    await world.settle()
    found = (await world.objects.list(Event)).items
    return [event.reason for event in found if event.involved_object.name == "e1"]


def test_a_short_absence_goes_unnoticed_and_a_longer_one_does_not(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            await world.settle()
            assert online(world)
            player.hang_up()
            await asyncio.sleep(GRACE - 0.5)
            assert online(world)
            async with player.connected():
                await asyncio.sleep(10)
                assert online(world)
            await asyncio.sleep(GRACE + 0.1)
            assert not online(world)
            assert world.exporter().status.exporter_status is S.OFFLINE
            async with player.connected():
                await world.settle()
                assert online(world)
        assert sorted(await reasons(world)) == [
            "ExporterOffline",
            "ExporterOnline",
            "ExporterOnline",
            "ExporterRegistered",
        ]

    world.run(story)


def test_an_unreachable_exporter_is_offline_at_once(world: LabWorld) -> None:
    """Its machine was silent for seconds before its connection was closed."""

    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            await asyncio.sleep(GRACE)
            assert online(world)
            player.peer.unreachable = True
            player.hang_up()
            await world.settle()
            assert not online(world)
            async with player.connected():
                await world.settle()
                assert online(world)
            await asyncio.sleep(GRACE - 0.5)
            assert online(world), "a closed connection has its grace period again"

    world.run(story)


def test_what_is_said_of_an_exporter_is_said_of_its_present_spec(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.settle()
            found = world.exporter()
            edited = replace(found, spec=replace(found.spec, enabled=False))
            await world.objects.update(edited)
            await world.settle()
            now = world.exporter()
            assert now.metadata.generation == 2
            assert {c.observed_generation for c in now.status.conditions} == {2}
            assert online(world)

    world.run(story)


def test_after_a_restart_an_exporter_that_does_not_come_back_is_offline(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.service(), world.player():
            await world.settle()
        async with world.service():
            await asyncio.sleep(presence.START_GRACE.total_seconds() - 0.5)
            assert online(world), "it may be on its way with all the others"
            await asyncio.sleep(1)
            assert not online(world)

    world.run_without_service(story)


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "back"])
def test_a_lost_connection_is_noticed_in_time_although_the_clock_was_set(
    world: LabWorld, step: timedelta
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            await asyncio.sleep(60)
            player.hang_up()
            await asyncio.sleep(1)
            world.wall.jump(step)
            await asyncio.sleep(GRACE - 1.1)
            assert online(world), "its grace has not passed"
            await asyncio.sleep(1)
            assert not online(world)

    world.run(story)


def test_after_a_restart_an_exporter_is_missed_in_time_although_the_clock_was_set_back(
    world: LabWorld,
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.service(), world.player():
            await asyncio.sleep(60)
        async with world.service():
            await asyncio.sleep(1)
            world.wall.jump(-HOUR)
            await asyncio.sleep(presence.START_GRACE.total_seconds())
            assert not online(world)

    world.run_without_service(story)


def test_one_that_says_goodbye_is_offline_at_once_although_it_is_still_connected(
    world: LabWorld,
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            player.obeys = False
            await world.settle()
            await player.report(S.OFFLINE, "Exporter shutting down")
            await asyncio.sleep(30)
            assert not online(world)
            assert world.exporter().status.exporter_status is S.OFFLINE
            await world.make_lease("one")
            await asyncio.sleep(1)
            assert world.lease("one").status.exporter_ref is None
            # A new process of the same exporter starts over.
            await world.exporters.register(world.exporter(), labels={}, devices=())
            await world.settle()
            assert online(world)
            assert await world.assigned("one") == "e1"

    world.run(story)


def test_a_report_without_a_connection_counts_for_a_moment_only(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            player.hang_up()
            await asyncio.sleep(GRACE + 1)
            assert not online(world)
            await player.report(S.AVAILABLE)
            await world.settle()
            assert online(world)
            await asyncio.sleep(GRACE + 1)
            assert not online(world)

    world.run(story)


@pytest.mark.parametrize("doing", [S.LEASE_READY, S.AFTER_LEASE_HOOK, S.AFTER_LEASE_HOOK_FAILED])
def test_an_unleased_exporter_that_stays_busy_is_reported_once_and_cleared(
    world: LabWorld, doing: ExporterStatusValue
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            player.obeys = False
            await player.report(doing)
            await asyncio.sleep(STUCK_AFTER.total_seconds() - 1)
            assert get(world.exporter().status.conditions, "Stuck") is None
            await asyncio.sleep(2)
            assert presence.stuck(world.exporter())
            await player.report(doing, "still at it")
            await asyncio.sleep(2 * STUCK_AFTER.total_seconds())
            assert (await reasons(world)).count("ExporterStuck") == 1
            await player.report(S.AVAILABLE)
            await world.settle()
            assert not presence.stuck(world.exporter())
            assert "ExporterSettled" in await reasons(world)

    world.run(story)


def test_a_leased_exporter_is_never_stuck(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.make_lease("one")
            await world.assigned("one")
            await asyncio.sleep(2 * STUCK_AFTER.total_seconds())
            assert get(world.exporter().status.conditions, "Stuck") is None

    world.run(story)
