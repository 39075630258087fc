"""What happens to claims that have their targets: members are lost and replaced, claims end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from bullpen.api.kinds.core import Event
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.lease import Lease
from bullpen.api.meta import LocalObjectReference
from bullpen.core import conditions
from bullpen.core.leases import lifecycle, preemption
from bullpen.core.leases.preemption import PREEMPTED, PREEMPTION, PreemptionTimes
from bullpen.errors import Unavailable
from support.claim_stories import (
    allocated,
    claim,
    edit,
    enable,
    ended,
    holders,
    lab,
    leases_of,
    make_claim,
    said,
)
from support.lab_world import SPACE, LabWorld, stored_lease

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
ONE = {"name": "board", "exactly": {"deviceClassName": "any"}}


def devices(found: DeviceClaim) -> list[str]:
    return [member.device for member in found.status.members]


async def lose(world: LabWorld, device: str) -> None:
    """The lease of the claim for this exporter ends."""
    (lease,) = (x for x in leases_of(world) if x.status.exporter_ref.name == device)  # type: ignore[union-attr]
    await world.edit_lease(lease.metadata.name, release=True)
    await world.ended(lease.metadata.name)


def test_a_lost_member_is_replaced_alone_and_ends_with_the_others() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b", "c"):
            await make_claim(world, "c", memberLoss="Replace")
            before = await allocated(world)
            assert devices(before) == ["a", "b"]
            (stays,) = (m.lease_ref for m in before.status.members if m.device == "b")
            await asyncio.sleep(600)
            await enable(world, "a", enabled=False)
            await lose(world, "a")
            await world.until(lambda: devices(claim(world)) == ["b", "c"])
            assert said(world) == ("True", "Allocated")
            kept = {m.device: m.lease_ref for m in claim(world).status.members}
            assert kept["b"] == stays, "the other member has the lease that it had"
            assert len({lifecycle.expires_at(lease) for lease in leases_of(world)}) == 1
            await edit(world, duration=2 * HOUR)
            await world.settle()
            (end,) = {lifecycle.expires_at(lease) for lease in leases_of(world)}
            created = claim(world).metadata.creation_timestamp
            assert end is not None
            assert created is not None
            assert MINUTE > end - created - 2 * HOUR >= timedelta(0)

    LabWorld().run(story)


def test_a_replacement_fits_to_the_members_that_are_left() -> None:
    """The lost board is replaced at the site of the other, not by the first free one."""
    request = {"name": "boards", "exactly": {"deviceClassName": "any", "count": 2}}
    match = [{"matchAttribute": "site"}]

    async def story(world: LabWorld) -> None:
        for name, site in (("a", "brno"), ("b", "prague"), ("c", "brno"), ("d", "brno")):
            await world.make_exporter(name, site=site)
        await world.settle()
        async with lab(world, "a", "b", "c", "d"):
            await make_claim(world, "c", request, constraints=match, memberLoss="Replace")
            assert devices(await allocated(world)) == ["a", "c"]
            await enable(world, "a", enabled=False)
            await lose(world, "a")
            await world.until(lambda: devices(claim(world)) == ["c", "d"])

    LabWorld().run(story)


def test_a_claim_that_finds_no_replacement_keeps_the_others_and_says_so() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await make_claim(world, "c", memberLoss="Replace")
            await allocated(world)
            await enable(world, "a", enabled=False)
            await lose(world, "a")
            await world.until(lambda: said(world) == ("False", "Replacing"))
            await world.until(lambda: set(holders(world)) == {"b"})
            await enable(world, "a", enabled=True)
            assert devices(await allocated(world)) == ["a", "b"]
            assert await ended(world) == "Expired"

    LabWorld().run(story)


ALL = {"name": "boards", "exactly": {"deviceClassName": "any", "allocationMode": "All"}}


@pytest.mark.parametrize(
    ("request_", "loss"),
    [(ONE | {"exactly": {"deviceClassName": "any", "count": 2}}, "End"), (ALL, "Replace")],
    ids=["it chose so", "it asked for all"],
)
def test_a_claim_ends_with_a_lost_member_if(request_: dict[str, Any], loss: str) -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await make_claim(world, "c", request_, memberLoss=loss)
            await allocated(world)
            await lose(world, "a")
            assert await ended(world) == "MemberLost"

    LabWorld().run(story)


BOB = LocalObjectReference(name="bob")


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    ("change", "done"),
    [
        pytest.param(
            {"duration": 2 * HOUR},
            lambda world: {x.spec.duration for x in leases_of(world)} == {2 * HOUR},
            id="extended",
        ),
        pytest.param(
            {"client_ref": BOB},
            lambda world: {x.status.client_ref for x in leases_of(world)} == {BOB},
            id="transferred",
        ),
        pytest.param({"release": True}, lambda world: not leases_of(world), id="released"),
    ],
)
def test_a_crash_between_the_leases_of_a_claim_leaves_none_of_them_behind(
    at: int, change: dict[str, Any], done: Callable[[LabWorld], bool]
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.service(), lab(world, "a", "b"):
            await make_claim(world, "c")
            await allocated(world)
            real, reached, seen = world.objects.update, asyncio.Event(), 0

            async def update(value: Any) -> Any:
                nonlocal seen
                seen += isinstance(value, Lease)
                if seen > at:
                    reached.set()
                    raise Unavailable("gone")
                return await real(value)

            world.objects.update = update  # type: ignore[method-assign]
            await edit(world, **change)
            await asyncio.wait_for(reached.wait(), 60)
            assert not done(world)
        world.objects.update = real  # type: ignore[method-assign]
        async with world.service(), world.player("a"), world.player("b"):
            await world.until(lambda: done(world))
            if "release" in change:
                assert await ended(world) == "Released"
                await world.until(lambda: not holders(world))
            else:
                assert len(leases_of(world)) == 2
                assert said(world) == ("True", "Allocated")

    LabWorld().run_without_service(story)


def test_the_leases_of_a_claim_that_expires_while_the_service_is_away_end_together() -> None:
    async def story(world: LabWorld) -> None:
        async with world.service(), lab(world, "a", "b"):
            await make_claim(world, "c")
            await allocated(world)
        await asyncio.sleep(2 * HOUR.total_seconds())
        async with world.service(), world.player("a"), world.player("b"):
            assert await ended(world) == "Expired"
            await world.until(lambda: not leases_of(world) and not holders(world))

    LabWorld().run_without_service(story)


async def held_long_enough() -> None:
    await asyncio.sleep(PREEMPTION.held_min.total_seconds())


def test_a_preemptible_claim_ends_for_a_higher_one_after_a_grace_period() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            bob = {"name": "bob"}
            await make_claim(world, "low", ONE, clientRef=bob, preemptible=True, duration="8h")
            await allocated(world, "low")
            await held_long_enough()
            await make_claim(world, "high", ONE, priority=5)
            told = world.clock.now()
            await world.until(lambda: said(world, "high") == ("False", "Preempting"))
            found = conditions.get(claim(world, "low").status.conditions, PREEMPTED)
            assert found is not None
            assert "claim high" in found.message
            assert said(world, "low") == ("True", "Allocated")
            await world.make_lease("other", client="bob")
            assert await ended(world, "low") == "Preempted"
            assert world.clock.now() - told > PREEMPTION.grace - SECOND, "times are whole seconds"
            await allocated(world, "high")
            assert holders(world)["a"] != "other"
            await asyncio.sleep(60)  # events are written behind
            about = {e.reason for e in (await world.objects.list(Event)).items}
            assert about >= {"ClaimHigherPriority", "ClaimPreempted"}

    LabWorld().run(story)


def test_the_cheapest_claims_end_and_no_others() -> None:
    """H17 with a gang: it ends as a whole, and only if nothing cheaper will do."""

    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b", "c"):
            await make_claim(world, "gang", preemptible=True, priority=1, duration="8h")
            await allocated(world, "gang")
            await make_claim(world, "single", ONE, preemptible=True, duration="8h")
            await allocated(world, "single")
            await held_long_enough()
            await make_claim(world, "one", ONE, priority=5, duration="8h")
            assert await ended(world, "single") == "Preempted"
            await allocated(world, "one")
            assert said(world, "gang") == ("True", "Allocated")
            await make_claim(world, "two", ONE, priority=5)
            assert await ended(world, "gang") == "Preempted"
            await allocated(world, "two")

    LabWorld().run(story)


def test_a_claim_is_not_ended_before_it_had_its_devices_for_a_while() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await make_claim(world, "low", ONE, preemptible=True, duration="8h")
            await allocated(world, "low")
            await make_claim(world, "high", ONE, priority=5)
            await asyncio.sleep((PREEMPTION.held_min - MINUTE).total_seconds())
            assert said(world, "high") == ("False", "NotAvailable")
            await asyncio.sleep((MINUTE + PREEMPTION.grace).total_seconds())
            await allocated(world, "high")

    LabWorld().run(story)


def test_the_settings_say_how_soon_a_claim_ends_for_another_one() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await make_claim(world, "low", ONE, preemptible=True, duration="8h")
            await allocated(world, "low")
            before = world.clock.now()
            await make_claim(world, "high", ONE, priority=5)
            await allocated(world, "high")
            took = world.clock.now() - before
            assert world.preemption.grace - SECOND < took < PREEMPTION.grace

    world = LabWorld()
    world.preemption = PreemptionTimes(grace=timedelta(seconds=20), held_min=timedelta(0))
    world.run(story)


def test_a_claim_goes_on_if_its_devices_are_not_needed_any_more() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await make_claim(world, "low", ONE, preemptible=True, duration="8h")
            await allocated(world, "low")
            await held_long_enough()
            await make_claim(world, "high", ONE, priority=5)
            await world.until(lambda: said(world, "high") == ("False", "Preempting"))
            await edit(world, "high", release=True)
            await asyncio.sleep(2 * PREEMPTION.grace.total_seconds())
            assert said(world, "low") == ("True", "Allocated")
            assert not conditions.holds(claim(world, "low").status.conditions, PREEMPTED)

    LabWorld().run(story)


def lease(world: LabWorld, name: str) -> Lease:
    return stored_lease(world.registry, SPACE, name)


def test_a_claim_with_admin_access_takes_what_a_lease_has_after_telling_it() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await world.make_lease("held", client="bob", duration=8 * HOUR)
            await world.assigned("held")
            await world.make_lease("older", client="bob", duration=8 * HOUR)
            told = world.clock.now()
            await make_claim(world, "repair", ONE, adminAccess=True)
            await world.until(lambda: said(world, "repair") == ("False", "Preempting"))
            found = conditions.get(lease(world, "held").status.conditions, PREEMPTED)
            assert found is not None
            assert found.reason == "AdminAccess"
            assert "claim repair with admin access" in found.message
            assert lease(world, "held").status.conditions[-1].type == "Ready", "jmp reads the last"
            assert not lease(world, "held").status.ended
            await world.until(lambda: lease(world, "held").status.ended, seconds=120)
            assert world.clock.now() - told > PREEMPTION.grace - SECOND
            await allocated(world, "repair")
            ready = conditions.get(lease(world, "held").status.conditions, "Ready")
            assert ready is not None
            assert ready.reason == "Preempted"
            assert lease(world, "older").status.exporter_ref is None, "it goes before others"
            await asyncio.sleep(60)  # events are written behind
            about = {e.reason for e in (await world.objects.list(Event)).items}
            assert about >= {"LeaseAdminAccess", "LeasePreempted"}

    LabWorld().run(story)


def test_admin_access_takes_nothing_while_something_is_free() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await make_claim(world, "other", ONE, duration="8h")
            await allocated(world, "other")
            await make_claim(world, "repair", ONE, adminAccess=True)
            await allocated(world, "repair")
            assert not preemption.told(claim(world, "other").status.conditions)
            await make_claim(world, "second", ONE, adminAccess=True)
            assert await ended(world, "other") == "Preempted"
            await allocated(world, "second")
            await make_claim(world, "third", ONE, adminAccess=True)
            await asyncio.sleep(2 * PREEMPTION.grace.total_seconds())
            assert said(world, "third") == ("False", "NotAvailable"), "not from each other"

    LabWorld().run(story)


def test_a_lease_goes_on_if_the_claim_with_admin_access_is_deleted_in_time() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await world.make_lease("held", client="bob", duration=8 * HOUR)
            await world.assigned("held")
            await make_claim(world, "repair", ONE, adminAccess=True)
            await world.until(lambda: preemption.told(lease(world, "held").status.conditions))
            await world.objects.delete(claim(world, "repair"))
            await asyncio.sleep(2 * PREEMPTION.grace.total_seconds())
            found = lease(world, "held").status
            assert not found.ended
            assert not preemption.told(found.conditions)

    LabWorld().run(story)


@pytest.mark.parametrize("priority", [0, 5])
def test_a_claim_that_is_not_preemptible_or_as_important_goes_on(priority: int) -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await make_claim(world, "low", ONE, preemptible=priority == 0, duration="8h")
            await allocated(world, "low")
            await held_long_enough()
            await make_claim(world, "high", ONE, priority=priority)
            await asyncio.sleep(2 * PREEMPTION.grace.total_seconds())
            assert said(world, "low") == ("True", "Allocated")
            assert said(world, "high") == ("False", "NotAvailable")

    LabWorld().run(story)
