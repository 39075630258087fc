"""The begin time of a claim is a reservation, kept from leases and other claims."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.meta import LocalObjectReference
from bullpen.core import conditions
from bullpen.core.leases.lease_group import pinned
from bullpen.kit import times
from bullpen.protocol import claims_pb2
from bullpen.services.dialing import Precondition
from bullpen.services.lease_requests import Edit
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
from support.lab_world import SPACE, LabWorld

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
ONE = {"name": "board", "exactly": {"deviceClassName": "any"}}


async def book(world: LabWorld, name: str = "c", *requests: dict[str, Any], **spec: Any) -> None:
    """A claim that begins in an hour, and is booked."""
    begin = times.text(world.clock.now() + HOUR)
    await make_claim(world, name, *requests, **{"beginTime": begin, **spec})
    await world.until(lambda: said(world, name) == ("False", "Reserved"))


def message(world: LabWorld, name: str = "c") -> str:
    found = conditions.get(claim(world, name).status.conditions, "Allocated")
    assert found is not None
    return found.message


def test_a_claim_has_its_exporters_at_its_begin_time_although_leases_want_them() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await book(world)
            assert len(leases_of(world)) == 2
            assert not holders(world), "a booking holds nothing before it begins"
            await world.make_lease("long", client="bob", duration=2 * HOUR)
            await world.make_lease("short", client="bob", duration=HOUR / 2)
            await world.assigned("short")
            assert [c.reason for c in world.lease("long").status.conditions] == ["Booked"]
            await asyncio.sleep(HOUR.total_seconds())
            await allocated(world)
            assert await ended(world) == "Expired"
            await world.assigned("long")

    LabWorld().run(story)


def test_a_booking_is_kept_from_other_claims_and_they_get_what_is_left() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b", "c"):
            await book(world)
            await make_claim(world, "two", clientRef={"name": "bob"}, duration="30m")
            await make_claim(world, "one", ONE, clientRef={"name": "bob"}, duration="2h")
            await allocated(world, "two")
            (member,) = (await allocated(world, "one")).status.members
            assert member.device == "c"

    LabWorld().run(story)


def test_two_claims_book_different_exporters_and_a_third_is_told_that_none_is_left() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await book(world, "one", ONE)
            await book(world, "two", ONE)
            booked = {
                x.spec.exporter_ref for name in ("one", "two") for x in leases_of(world, name)
            }
            assert booked == {LocalObjectReference(name="a"), LocalObjectReference(name="b")}
            begin = times.text(world.clock.now() + HOUR)
            await make_claim(world, "three", ONE, beginTime=begin)
            await world.until(lambda: said(world, "three") == ("False", "NotAvailable"))

    LabWorld().run(story)


def test_a_claim_books_around_leases_that_are_booked() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            begin, named = world.clock.now() + HOUR, LocalObjectReference(name="a")
            await world.make_lease("booked", client="bob", begin_time=begin, exporter_ref=named)
            await world.settle()
            await book(world, "c", ONE)
            (lease,) = leases_of(world)
            assert pinned(lease) == "b"
            await make_claim(world, "d", ONE, duration="2h")
            await world.until(lambda: said(world, "d")[0] == "False")
            await make_claim(world, "e", ONE, duration="30m")
            await allocated(world, "e")

    LabWorld().run(story)


def test_a_booking_moves_when_its_exporter_is_disabled() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await book(world, "c", ONE)
            await enable(world, "a", enabled=False)
            await world.until(lambda: [pinned(x) for x in leases_of(world)] == ["b"])
            assert said(world) == ("False", "Reserved")

    LabWorld().run(story)


def test_a_booking_survives_a_restart() -> None:
    """The leases of a booked claim exist, so the first pass of the next process keeps them."""

    async def story(world: LabWorld) -> None:
        async with world.service(), lab(world, "a"):
            await book(world, "c", ONE)
        async with world.service():
            await world.until(lambda: world.views.exporters.get("default", "a"))
            await world.make_lease("long", client="bob", duration=3 * HOUR)
            async with world.player("a"):
                await asyncio.sleep(HOUR.total_seconds())
                await allocated(world)

    LabWorld().run_without_service(story)


def test_a_begin_time_that_changes_is_booked_again() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await book(world, "c", ONE)
            later = world.clock.now().replace(microsecond=0) + 3 * HOUR
            await edit(world, begin_time=later)
            await world.until(lambda: [x.spec.begin_time for x in leases_of(world)] == [later])
            await world.make_lease("between", client="bob", duration=2 * HOUR)
            await world.assigned("between")

    LabWorld().run(story)


def test_a_claim_whose_time_passes_while_it_waits_ends() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await world.make_lease("busy", client="bob", duration=9 * HOUR)
            await world.assigned("busy")
            begin = times.text(world.clock.now() + HOUR)
            await make_claim(world, "c", ONE, beginTime=begin)
            await world.until(lambda: said(world) == ("False", "NotAvailable"))
            await asyncio.sleep((2 * HOUR).total_seconds())
            await world.until(lambda: claim(world).status.ended)
            assert said(world) == ("False", "Expired")

    LabWorld().run(story)


@pytest.mark.parametrize("free", [False, True], ids=["no other exporter", "another exporter"])
def test_a_lease_is_not_extended_past_a_booking_that_has_no_other_exporter(free: bool) -> None:
    """H16."""

    async def story(world: LabWorld) -> None:
        async with lab(world, "a", *(("b",) if free else ())):
            await world.make_lease("busy", client="bob", duration=HOUR / 2)
            await world.assigned("busy")
            begin = world.clock.now() + HOUR
            await world.make_lease("booked", begin_time=begin)
            await world.settle()
            bob = world.client("bob")
            await world.leases.update(bob, "busy", Edit(duration=HOUR - MINUTE))
            if free:
                await world.leases.update(bob, "busy", Edit(duration=2 * HOUR))
                return
            with pytest.raises(Precondition, match=r"exporter a is booked from .* by alice"):
                await world.leases.update(bob, "busy", Edit(duration=2 * HOUR))
            assert world.lease("busy").spec.duration == HOUR - MINUTE

    LabWorld().run(story)


def test_a_claim_is_not_extended_past_the_booking_of_another() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await make_claim(world, "now", clientRef={"name": "bob"}, duration="30m")
            await allocated(world, "now")
            await book(world)
            for minutes, refused in ((59, False), (90, True)):
                wanted = claims_pb2.UpdateClaimRequest(name=f"namespaces/{SPACE}/claims/now")
                wanted.duration.FromTimedelta(minutes * MINUTE)
                if not refused:
                    await world.claims.UpdateClaim(world.client("bob"), wanted)
                    continue
                with pytest.raises(Precondition, match=r"exporter a is booked from .* by alice"):
                    await world.claims.UpdateClaim(world.client("bob"), wanted)
            assert claim(world, "now").spec.duration == 59 * MINUTE
            await asyncio.sleep(HOUR.total_seconds())
            await allocated(world)

    LabWorld().run(story)


def test_a_waiting_claim_is_no_reason_to_refuse_an_extension() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await world.make_lease("busy", client="bob", duration=HOUR / 2)
            await world.assigned("busy")
            await make_claim(world, "c", ONE)
            await world.until(lambda: said(world) == ("False", "NotAvailable"))
            await world.leases.update(world.client("bob"), "busy", Edit(duration=2 * HOUR))

    LabWorld().run(story)


def test_bookings_are_leases_that_the_claim_owns() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await book(world, "c", ONE)
            (lease,) = leases_of(world)
            (owner,) = lease.metadata.owner_references
            assert (owner.kind, owner.uid) == (DeviceClaim.kind, claim(world).metadata.uid)
            assert "it begins at" in message(world)
            await edit(world, release=True)
            assert await ended(world) == "Released"
            await world.until(lambda: not leases_of(world))

    LabWorld().run(story)


def test_a_booked_claim_that_must_wait_keeps_its_other_exporters() -> None:
    """Found by the simulator: at its begin time one exporter was late, and others got the rest."""

    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await book(world)
            late = world.lease(leases_of(world)[0].metadata.name).spec.exporter_ref
            await world.make_lease(
                "late", client="bob", exporter_ref=late, duration=HOUR - 10 * MINUTE
            )
            await world.assigned("late")
            await world.edit_lease("late", duration=HOUR + 10 * MINUTE)
            await world.make_lease("long", client="bob", duration=5 * HOUR)
            await asyncio.sleep((HOUR + 5 * MINUTE).total_seconds())
            assert list(holders(world).values()) == ["late"]
            await asyncio.sleep((5 * MINUTE).total_seconds())
            await allocated(world)

    LabWorld().run(story)
