"""Leases and claims wait in one queue: by priority, and by age less the handicap of recent use."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import count

import pytest

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.deviceclass import DeviceClass
from bullpen.api.meta import LocalObjectReference
from bullpen.core.leases.fair_share import HANDICAP_MAX
from support.claim_stories import allocated, edit, holders, lab, leases_of, make, make_claim, said
from support.lab_world import SPACE, LabWorld

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
SMALL = 10 * MINUTE
"""How long a lease of the stream has its exporter."""


async def stream(world: LabWorld, name: str) -> None:
    """A client that uses one exporter after another, without end."""
    for number in count():
        await world.make_lease(f"{name}-{number}", client="bob", duration=SMALL)
        await world.ended(f"{name}-{number}", seconds=24 * 3600)


def test_a_claim_for_several_does_not_starve_behind_a_stream_of_leases() -> None:
    """H14. Its exporters are kept for it as they become free.

    It waits for the leases that were requested before, and for one round of leases.
    """

    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"), asyncio.TaskGroup() as tasks:
            streams = []
            for number in range(4):
                streams.append(tasks.create_task(stream(world, f"small-{number}")))
                await asyncio.sleep(150)  # so that they never end at the same time
            await make_claim(world, "c")
            await asyncio.sleep(2 * SMALL.total_seconds())
            await allocated(world)
            for task in streams:
                task.cancel()

    LabWorld().run(story)


def test_shorter_leases_use_what_is_kept_for_a_claim_until_it_starts() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            named = LocalObjectReference(name="a")
            await world.make_lease("busy", client="bob", exporter_ref=named, duration=HOUR)
            await world.assigned("busy")
            await make_claim(world, "c")
            await world.until(lambda: said(world) == ("False", "NotAvailable"))
            await world.make_lease("long", client="bob", duration=2 * HOUR)
            await world.settle()
            assert [c.reason for c in world.lease("long").status.conditions] == ["Booked"]
            await world.make_lease("short", client="bob", duration=HOUR / 2)
            assert await world.assigned("short") == "b"
            await asyncio.sleep(HOUR.total_seconds())
            await allocated(world)

    LabWorld().run(story)


def test_what_a_claim_gives_up_is_leased_at_once() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            named = LocalObjectReference(name="a")
            await world.make_lease("busy", client="bob", exporter_ref=named)
            await world.assigned("busy")
            await make_claim(world, "c")
            await world.until(lambda: said(world) == ("False", "NotAvailable"))
            await world.make_lease("long", client="bob", duration=3 * HOUR)
            await world.settle()
            assert set(holders(world)) == {"a"}
            await edit(world, release=True)
            assert await world.assigned("long") == "b"

    LabWorld().run(story)


@pytest.mark.parametrize(("priority", "first"), [(0, "lease"), (1, "claim")])
def test_a_claim_goes_before_an_older_lease_only_with_a_higher_priority(
    priority: int, first: str
) -> None:
    one = {"name": "board", "exactly": {"deviceClassName": "any"}}

    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await world.make_lease("busy", client="bob")
            await world.assigned("busy")
            await world.make_lease("lease", client="bob", duration=2 * HOUR)
            await asyncio.sleep(2)
            await make_claim(world, "c", one, clientRef={"name": "bob"}, priority=priority)
            await world.until(lambda: said(world) == ("False", "NotAvailable"))
            await world.edit_lease("busy", release=True)
            await world.until(lambda: holders(world) not in ({}, {"a": "busy"}))
            served = "lease" if holders(world) == {"a": "lease"} else "claim"
            assert served == first
            assert (served == "claim") == bool(leases_of(world))

    LabWorld().run(story)


async def use_for_hours(world: LabWorld, client: str, hours: int) -> None:
    await world.make_lease("heavy", client=client, duration=hours * HOUR)
    await world.assigned("heavy")
    await asyncio.sleep(hours * 3600)
    await world.ended("heavy")


async def next_of(world: LabWorld, first: str, second: str, *, after: timedelta) -> str:
    """Which of two clients gets the exporter, of which the first asked so much earlier."""
    await world.make_lease("busy", client="bob", duration=9 * HOUR)
    await world.assigned("busy")
    await world.make_lease("one", client=first)
    await asyncio.sleep(after.total_seconds())
    await world.make_lease("two", client=second)
    await world.settle()
    await world.edit_lease("busy", release=True)
    await world.until(lambda: holders(world).get("a") in ("one", "two"))
    return {"one": first, "two": second}[holders(world)["a"]]


@pytest.mark.parametrize(
    ("later", "first"),
    [(MINUTE, "bob"), (HANDICAP_MAX + MINUTE, "alice")],
    ids=["of about the same age", "an hour later"],
)
def test_a_client_that_used_much_of_late_goes_after_one_that_asked(
    later: timedelta, first: str
) -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await use_for_hours(world, "alice", 8)
            assert await next_of(world, "alice", "bob", after=later) == first

    LabWorld().run(story)


def test_the_cost_of_a_class_weighs_what_is_used() -> None:
    """Bob used the exporter for longer, but alice's use was of an expensive one."""
    cheap = {"labels": {"matchLabels": {"board": "cheap"}}}
    dear = {"labels": {"matchLabels": {"board": "x"}}}

    async def story(world: LabWorld) -> None:
        await make(world, DeviceClass, "dear", spec={"selectors": [dear], "cost": 100})
        await make(world, DeviceClass, "cheap", spec={"selectors": [cheap]})
        await world.make_exporter("b", board="cheap")
        async with lab(world, "a", "b"):
            named = LocalObjectReference(name="b")
            await world.make_lease("long", client="bob", exporter_ref=named, duration=8 * HOUR)
            await use_for_hours(world, "alice", 1)
            await world.edit_lease("long", release=True)
            assert await next_of(world, "alice", "bob", after=MINUTE) == "bob"

    LabWorld().run(story)


def test_what_was_used_before_a_restart_still_counts() -> None:
    async def story(world: LabWorld) -> None:
        async with world.service(), lab(world, "a"):
            await use_for_hours(world, "alice", 8)
        async with world.service():
            await world.until(lambda: world.views.exporters.get("default", "a"))
            async with world.player("a"):
                await asyncio.sleep(120)  # the first reading of ended leases
                assert await next_of(world, "alice", "bob", after=MINUTE) == "bob"

    LabWorld().run_without_service(story)


def test_a_client_that_is_made_again_has_used_nothing() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await use_for_hours(world, "alice", 8)
            await world.objects.delete(world.client("alice"))
            await world.until(lambda: world.views.clients.get(SPACE, "alice") is None)
            await make(world, Client, "alice")
            await world.until(lambda: world.views.clients.get(SPACE, "alice"))
            assert await next_of(world, "alice", "bob", after=MINUTE) == "alice"

    LabWorld().run(story)
