"""What a client is told about a lease that waits or cannot be served, and which policy counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bullpen.api import codec
from bullpen.api.kinds.accesspolicy import ExporterAccessPolicy
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.exporter import Exporter, ExporterStatusValue
from bullpen.api.meta import LabelSelector, LocalObjectReference
from bullpen.core import conditions
from support.lab_world import SPACE, LabWorld

HOUR = timedelta(hours=1)


def impatient() -> LabWorld:
    """A lab where a lease does not wait for something that matches it."""
    world = LabWorld()
    world.unmatched_wait = timedelta(0)
    return world


def told(world: LabWorld, lease: str, type_: str = "Pending") -> tuple[str, str]:
    found = conditions.get(world.lease(lease).status.conditions, type_)
    return (found.reason, found.message) if found is not None else ("", "")


async def refused(world: LabWorld, **spec: Any) -> tuple[str, str]:
    await world.make_lease("lost", **spec)
    await world.ended("lost")
    return told(world, "lost", "Unsatisfiable")


async def waiting(world: LabWorld, name: str, **spec: Any) -> tuple[str, str]:
    await world.make_lease(name, **spec)
    await world.until(lambda: told(world, name)[0])
    await world.settle()
    return told(world, name)


async def change_exporter(world: LabWorld, name: str, *, enabled: bool) -> None:
    found = await world.objects.get(Exporter, SPACE, name)
    await world.objects.update(replace(found, spec=replace(found.spec, enabled=enabled)))
    await world.settle()


async def policy(world: LabWorld, name: str, labels: dict[str, str], *rules: Any) -> None:
    spec = {"exporterSelector": {"matchLabels": labels}, "policies": list(rules)}
    document = {"metadata": {"name": name, "namespace": SPACE}, "spec": spec}
    await world.objects.create(codec.decode(ExporterAccessPolicy, document))
    await world.settle()


def rule(team: str, **more: Any) -> dict[str, Any]:
    return {"from": [{"clientSelector": {"matchLabels": {"team": team}}}], **more}


async def join(world: LabWorld, client: str, team: str) -> None:
    found = await world.objects.get(Client, SPACE, client)
    meta = replace(found.metadata, labels={"team": team})
    await world.objects.update(replace(found, metadata=meta))
    await world.settle()


def named(name: str) -> LocalObjectReference:
    return LocalObjectReference(name=name)


@contextlib.asynccontextmanager
async def busy(world: LabWorld, *names: str) -> AsyncIterator[None]:
    """Connected exporters that bob has."""
    async with contextlib.AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(world.player(name))
            held = f"of-{name}"
            await world.make_lease(held, client="bob", exporter_ref=named(name), duration=9 * HOUR)
            await world.assigned(held)
        yield


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, ("NoAccess", "no exporter and no pool matches board=x")),
        ({"client_ref": named("eve")}, ("NoAccess", "client eve does not exist")),
        ({"exporter_ref": named("e9")}, ("ExporterNotFound", "there is no exporter e9")),
        (
            {"exporter_ref": named("other")},
            ("SelectorMismatch", "exporter other does not match the selector board=x"),
        ),
        (
            {"selector": LabelSelector(match_labels={"board": "off"})},
            ("AllDisabled", "every exporter that matches board=off is disabled"),
        ),
        (
            {"exporter_ref": named("off"), "selector": LabelSelector()},
            ("ExporterDisabled", "exporter off is disabled"),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_lease_that_can_never_be_served_says_why(
    spec: dict[str, Any], said: tuple[str, str]
) -> None:
    async def story(world: LabWorld) -> None:
        await world.make_exporter("other", board="y")
        await world.make_exporter("off", board="off")
        await change_exporter(world, "off", enabled=False)
        await world.make_lease("lost", **spec)
        await world.ended("lost")
        assert told(world, "lost", "Unsatisfiable") == said

    impatient().run(story)


def test_a_disabled_exporter_serves_a_lease_that_allows_it_and_no_other() -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await change_exporter(world, "e1", enabled=False)
            assert (await refused(world))[0] == "AllDisabled"
            await world.make_lease("mine", allow_disabled=True, exporter_ref=named("e1"))
            assert await world.assigned("mine") == "e1"

    impatient().run(story)


def test_a_lease_waits_a_moment_for_something_that_matches() -> None:
    async def story(world: LabWorld) -> None:
        world.unmatched_wait = timedelta(seconds=20)
        async with world.service():
            assert await waiting(world, "early") == (
                "NoMatch",
                "no exporter and no pool matches board=x; waiting a moment for one to appear",
            )
            assert (await waiting(world, "named", exporter_ref=named("e1")))[0] == "NoMatch"
            await asyncio.sleep(10)
            async with world.player():
                assert await world.assigned("early") == "e1"
                await world.make_lease(
                    "late", selector=LabelSelector(match_labels={"board": "other"})
                )
                await asyncio.sleep(19)
                assert not world.lease("late").status.ended
                assert await world.ended("late", seconds=3) == "NoAccess"

    LabWorld().run_without_service(story)


def test_what_is_offline_and_what_is_not_ready_is_said() -> None:
    async def story(world: LabWorld) -> None:
        await world.make_exporter("e1")
        text = "position 1 in the queue: 1 exporter matches, but it is not online"
        assert await waiting(world, "one") == ("Offline", text)
        await world.make_exporter("e2")
        await world.settle()
        text = "position 1 in the queue: 2 exporters match, but none is online"
        assert told(world, "one") == ("Offline", text)
        async with world.player("e1") as player:
            await world.assigned("one")
            assert world.lease("one").status.exporter_ref == named("e1")
            await world.settle()
            player.obeys = False
            await world.edit_lease("one", release=True)
            await world.ended("one")
            await player.report(ExporterStatusValue.AFTER_LEASE_HOOK)
            reason, text = await waiting(world, "two")
            assert reason == "NotReady"
            assert text == "position 1 in the queue: 2 exporters match, but none is ready yet"

    LabWorld().run(story)


def test_what_is_in_use_is_said_with_the_position_in_the_queue() -> None:
    async def story(world: LabWorld) -> None:
        async with busy(world, "e1"):
            text = "in the queue: 1 exporter matches, it is in use"
            assert await waiting(world, "w1") == ("NotAvailable", f"position 1 {text}")
            assert await waiting(world, "w2") == ("NotAvailable", f"position 2 {text}")
            await world.make_exporter("e2")
            await world.settle()
            text = "in the queue: 2 exporters match, all online ones are in use"
            assert told(world, "w1") == ("NotAvailable", f"position 1 {text}")

    LabWorld().run(story)


def test_positions_beyond_ten_are_rounded() -> None:
    async def story(world: LabWorld) -> None:
        async with busy(world, "e1", "e2"):
            for number in range(1, 22):
                await world.make_lease(f"w{number}")
            await world.until(lambda: told(world, "w21")[0])
            await world.settle()
            said = {n: told(world, f"w{n}")[1].partition(":")[0] for n in range(1, 22)}
            assert said[10] == "position 10 in the queue"
            assert said[11] == said[20] == "position about 20 in the queue"
            assert said[21] == "position about 30 in the queue"
            assert told(world, "w1")[1].endswith("2 exporters match, all are in use")
            await world.edit_lease("of-e1", release=True)
            await world.assigned("w1")
            await world.settle()
            assert told(world, "w11")[1].startswith("position 10 in the queue")

    LabWorld().run(story)


def test_a_policy_that_allows_only_shorter_leases_says_how_long_they_may_be() -> None:
    async def story(world: LabWorld) -> None:
        await join(world, "alice", "a")
        async with world.player():
            await policy(world, "p", {"board": "x"}, rule("a", maximumDuration="30m"))
            said = await refused(world)
            assert said == ("NoAccess", "the policies allow alice at most 30m0s")
            await world.make_lease("short", duration=HOUR / 2)
            assert await world.assigned("short") == "e1"
            assert world.lease("short").status.maximum_duration == HOUR / 2

    impatient().run(story)


def test_a_client_without_access_is_told_the_descriptions_of_the_rules() -> None:
    async def story(world: LabWorld) -> None:
        await join(world, "alice", "a")
        await world.make_exporter("e1")
        await policy(
            world,
            "p",
            {"board": "x"},
            rule("b", description="ask team b"),
            rule("c", description="ask team c"),
            rule("d", description="ask team b"),
        )
        said = await refused(world)
        text = "no policy gives alice access to exporter e1: ask team b; ask team c"
        assert said == ("NoAccess", text)
        await world.make_exporter("e2")
        await world.settle()
        await world.make_lease("second")
        await world.ended("second")
        text = "no policy gives alice access to any of the 2 exporters that match"
        assert told(world, "second", "Unsatisfiable")[1].startswith(text)
        named_one = await world.objects.get(Exporter, SPACE, "e2")
        meta = replace(named_one.metadata, labels={"board": "z"})
        await world.objects.update(replace(named_one, metadata=meta))
        await world.settle()
        await world.make_lease("third", selector=LabelSelector(match_labels={"board": "z"}))
        await world.ended("third")
        text = "no policy gives alice access to exporter e2"
        assert told(world, "third", "Unsatisfiable") == ("NoAccess", text)

    impatient().run(story)


def test_the_rule_that_is_no_spot_and_has_the_highest_priority_counts() -> None:
    async def story(world: LabWorld) -> None:
        await join(world, "alice", "a")
        await policy(
            world,
            "p",
            {"board": "x"},
            rule("a", priority=1, maximumDuration="2h"),
            rule("a", priority=7, maximumDuration="1h"),
            rule("a", priority=9, spotAccess=True),
            rule("b", priority=8),
        )
        async with world.player():
            await world.make_lease("one", duration=HOUR)
            await world.assigned("one")
            status = world.lease("one").status
            assert (status.priority, status.spot_access) == (7, False)
            assert status.maximum_duration is None, "with spot access there is no limit"
            await world.edit_lease("one", release=True)
            await world.ended("one")
            await world.make_lease("two", duration=2 * HOUR)
            await world.assigned("two")
            assert world.lease("two").status.priority == 1
            await world.edit_lease("two", release=True)
            await world.ended("two")
            await world.make_lease("three", duration=3 * HOUR)
            await world.assigned("three")
            status = world.lease("three").status
            assert (status.priority, status.spot_access) == (9, True)

    LabWorld().run(story)


def test_leases_of_a_rule_with_a_higher_priority_go_first() -> None:
    async def story(world: LabWorld) -> None:
        await join(world, "alice", "a")
        await join(world, "bob", "b")
        await policy(world, "p", {"board": "x"}, rule("a", priority=1), rule("b", priority=2))
        async with world.player():
            await world.make_lease("held")
            await world.assigned("held")
            await world.make_lease("first", client="alice")
            await asyncio.sleep(5)
            await world.make_lease("second", client="bob")
            await world.until(lambda: told(world, "first")[1].startswith("position 2 "))
            assert told(world, "second")[1].startswith("position 1 ")
            await world.edit_lease("held", release=True)
            await world.assigned("second")
            assert world.lease("first").status.exporter_ref is None

    LabWorld().run(story)
