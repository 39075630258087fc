"""What is booked is there at its time, and short work uses it until then."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

from bullpen.core import conditions
from support.lab_world import LabWorld
from support.pool_world import NAMESPACE, World

HOUR = timedelta(hours=1)


def why(world: LabWorld, name: str) -> str:
    found = conditions.get(world.lease(name).status.conditions, "Pending")
    return found.reason if found is not None else ""


def test_a_walk_in_waits_for_the_booking_and_short_work_does_not() -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.make_lease("booked", begin_time=world.clock.now() + HOUR)
            await world.make_lease("long", duration=2 * HOUR)
            await world.until(lambda: why(world, "long") == "Booked")
            await world.make_lease("short", duration=HOUR / 4)
            assert await world.assigned("short") == "e1"
            assert await world.ended("short", seconds=HOUR.total_seconds()) == "Expired"
            await asyncio.sleep(HOUR.total_seconds() / 2)
            assert world.lease("long").status.exporter_ref is None
            assert world.exporter().status.lease_ref is None
            begins = world.lease("booked").spec.begin_time
            await world.until(
                lambda: world.lease("booked").status.exporter_ref, seconds=HOUR.total_seconds()
            )
            assert begins is not None
            assert world.clock.now() - begins < timedelta(seconds=2)
            await world.until(
                lambda: world.lease("long").status.exporter_ref, seconds=2 * HOUR.total_seconds()
            )

    LabWorld().run(story)


def test_a_cancelled_booking_frees_what_it_kept_at_once() -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.make_lease("booked", begin_time=world.clock.now() + HOUR)
            await world.make_lease("long", duration=2 * HOUR)
            await world.until(lambda: why(world, "long") == "Booked")
            await world.edit_lease("booked", release=True)
            assert await world.assigned("long") == "e1"

    LabWorld().run(story)


def test_a_booking_is_still_known_after_a_restart() -> None:
    async def story(world: LabWorld) -> None:
        async with world.service(), world.player():
            await world.make_lease("booked", begin_time=world.clock.now() + HOUR)
            await world.settle()
        async with world.service(), world.player():
            await world.make_lease("long", duration=2 * HOUR)
            await world.until(lambda: why(world, "long") == "Booked")

    LabWorld().run_without_service(story)


def test_a_lease_that_ends_sooner_makes_room_for_a_walk_in() -> None:
    """The booking moves to the exporter that becomes free in time."""

    async def story(world: LabWorld) -> None:
        async with world.player("e1"), world.player("e2"):
            await world.make_lease("held", duration=5 * HOUR)
            await world.assigned("held")
            await world.make_lease("booked", begin_time=world.clock.now() + HOUR)
            await world.make_lease("long", duration=2 * HOUR)
            await world.until(lambda: why(world, "long") == "Booked")
            await world.edit_lease("held", duration=HOUR / 2)
            assert await world.assigned("long")

    LabWorld().run(story)


def test_the_last_place_of_a_pool_is_kept_for_a_booking() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set(max_replicas=2)
        begin = world.clock.now() + HOUR
        await world.ask("booked", begin_time=begin)
        for name in ("first", "second"):
            await world.ask(name, duration=3 * HOUR)
        await world.until(lambda: _exporter(world, "first"))
        await world.until(lambda: _waits_for(world, "second") == "Booked")
        await world.sleep(HOUR.total_seconds() / 2)
        assert not _exporter(world, "second")
        assert world.status().replicas == 1, "no member is started for a lease that may not have it"
        await world.until(lambda: _exporter(world, "booked"), seconds=HOUR.total_seconds())
        assert world.clock.now() - begin < timedelta(seconds=2), "its member was started in time"

    World().run(story)


def _exporter(world: World, name: str) -> str:
    found = world.views.leases.get(NAMESPACE, name)
    ref = found.status.exporter_ref if found is not None else None
    return ref.name if ref is not None else ""


def _waits_for(world: World, name: str) -> str:
    found = world.views.leases.get(NAMESPACE, name)
    said = conditions.get(found.status.conditions, "Pending") if found is not None else None
    return said.reason if said is not None else ""


def test_an_edit_that_ends_a_lease_later_is_refused_for_a_booking_and_no_other() -> None:
    """As the API server asks about each edit with kubectl."""

    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.make_lease("held", duration=3 * HOUR)
            await world.assigned("held")
            await world.make_lease("booked", begin_time=world.clock.now() + HOUR)
            await world.settle()
            held = world.lease("held")

            def refusal(duration: timedelta) -> str:
                edited = replace(held, spec=replace(held.spec, duration=duration))
                return world.extensions.refusal(edited, held)

            assert not refusal(2 * HOUR), "it ends sooner than before"
            assert not refusal(HOUR / 2)
            await world.edit_lease("held", duration=HOUR / 2)
            await world.settle()
            held = world.lease("held")
            assert not refusal(HOUR * 3 / 4), "it ends before the booking begins"
            assert "is booked" in refusal(2 * HOUR)

    LabWorld().run(story)
