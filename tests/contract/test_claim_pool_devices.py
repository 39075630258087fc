"""Claims for devices of DevicePools, such as licences: used once, and given up in the end."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bullpen.api import codec
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.deviceclass import DeviceClass
from bullpen.api.kinds.devicepool import DevicePool
from bullpen.api.kinds.lease import Lease
from bullpen.core import conditions
from bullpen.core.claims import pool_allocations
from bullpen.core.claims.allocator import Answer, Member, Verdict
from bullpen.core.leases.quotas import Quotas
from bullpen.errors import Conflict, Unavailable
from bullpen.kit import times
from support.claim_stories import (
    allocated,
    claim,
    edit,
    ended,
    holders,
    lab,
    leases_of,
    make,
    make_claim,
    said,
)
from support.lab_world import SPACE, LabWorld

SEAT = {"name": "seat", "exactly": {"deviceClassName": "licence"}}
MINUTE = timedelta(minutes=1)


async def seats(world: LabWorld, *, total: int = 1, devices: int = 2) -> None:
    """A pool of licences, and its class. The class of all devices leaves them out."""
    await make(
        world,
        DeviceClass,
        "licence",
        spec={"selectors": [{"labels": {"matchLabels": {"pool": "licences"}}}]},
    )
    listed = [{"name": f"seat-{n}", "consumesCounters": {"seats": 1}} for n in range(devices)]
    spec = {"sharedCounters": {"seats": total}, "devices": listed}
    await make(world, DevicePool, "licences", spec=spec)


def board() -> dict[str, Any]:
    connected = {"labels": {"matchExpressions": [{"key": "exporter", "operator": "Exists"}]}}
    return {"name": "dut", "exactly": {"deviceClassName": "any", "selectors": [connected]}}


def users(world: LabWorld, pool: str = "licences") -> list[tuple[str, str]]:
    """Who has which device of a pool."""
    found = world.views[DevicePool].get(SPACE, pool)
    assert found is not None
    return [(a.claim, a.device) for a in found.status.allocations]


def members(world: LabWorld, name: str = "c") -> list[str]:
    return [member.device for member in claim(world, name).status.members]


def test_a_claim_gets_an_exporter_with_a_licence_and_gives_both_up() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await seats(world)
            await make_claim(world, "c", board(), SEAT)
            await allocated(world)
            assert members(world) == ["a", "licences/seat-0"]
            assert [member.lease_ref is None for member in claim(world).status.members] == [
                False,
                True,
            ]
            assert users(world) == [("c", "seat-0")]
            await make_claim(world, "d", board(), SEAT)
            await world.until(lambda: said(world, "d") == ("False", "NotAvailable"))
            found = conditions.get(claim(world, "d").status.conditions, "Allocated")
            assert found is not None
            assert "counter licences/seats has only 0 left" in found.message
            assert not leases_of(world, "d")
            await edit(world, release=True)
            await allocated(world, "d")
            assert users(world) == [("d", "seat-0")]
            assert said(world) == ("False", "Released")

    LabWorld().run(story)


@pytest.mark.parametrize("extended", [False, True], ids=["as it was made", "as it was extended"])
def test_a_claim_for_licences_alone_has_no_lease_and_ends_at_its_time(extended: bool) -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await seats(world)
            await make_claim(world, "c", SEAT, duration="1m" if extended else "2m")
            await allocated(world)
            assert members(world) == ["licences/seat-0"]
            assert not leases_of(world)
            if extended:
                await edit(world, duration=2 * MINUTE)
            begin = world.clock.now()
            assert await ended(world) == "Expired"
            assert MINUTE < world.clock.now() - begin <= 2 * MINUTE
            await world.settle()
            assert users(world) == []

    LabWorld().run(story)


def test_shares_of_one_device_fit_together() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world):
            card = {
                "name": "gpu",
                "capacity": {"memory": "40Gi"},
                "allowMultipleAllocations": True,
            }
            await make(world, DevicePool, "cards", spec={"devices": [card]})
            share = {"deviceClassName": "any", "capacity": {"memory": "16Gi"}}
            for name in ("first", "second", "third"):
                await make_claim(world, name, {"name": "gpu", "exactly": share})
            for name in ("first", "second"):
                await allocated(world, name)
            await world.until(lambda: said(world, "third")[0] == "False")
            assert users(world, "cards") == [("first", "gpu"), ("second", "gpu")]
            await edit(world, "first", release=True)
            await allocated(world, "third")

    LabWorld().run(story)


def test_licences_need_no_quota_of_leases() -> None:
    world = LabWorld()
    world.quotas = replace(Quotas(), active_max=0)

    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await seats(world)
            await make_claim(world, "c", SEAT)
            await allocated(world)
            await make_claim(world, "d", board())
            await world.until(lambda: said(world, "d") == ("False", "QuotaExceeded"))

    world.run(story)


def test_what_is_booked_of_a_pool_is_kept_until_the_claim_begins() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await seats(world)
            begin = times.text(world.clock.now() + 5 * MINUTE)
            await make_claim(world, "c", SEAT, beginTime=begin, duration="10m")
            await make_claim(world, "both", board(), SEAT, beginTime=begin, duration="10m")
            await world.until(lambda: said(world) == ("False", "Reserved"))
            await make_claim(world, "d", SEAT)
            await asyncio.sleep(60)
            assert users(world) == [("c", "seat-0")]
            assert said(world, "d")[0] == "False"
            await world.until(lambda: said(world) == ("True", "Allocated"), seconds=300)
            assert world.clock.now() >= times.parse(begin)
            assert await ended(world) == "Expired"
            await allocated(world, "d")

    LabWorld().run(story)


def test_an_exporter_and_a_licence_are_booked_together() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await seats(world)
            begin = times.text(world.clock.now() + 2 * MINUTE)
            await make_claim(world, "c", board(), SEAT, beginTime=begin, duration="10m")
            await world.until(lambda: said(world) == ("False", "Reserved"))
            await asyncio.sleep(30)
            names = [lease.metadata.name for lease in leases_of(world)]
            assert len(names) == 1
            await world.until(lambda: said(world) == ("True", "Allocated"), seconds=200)
            assert [lease.metadata.name for lease in leases_of(world)] == names
            assert members(world) == ["a", "licences/seat-0"]

    LabWorld().run(story)


@pytest.mark.parametrize("whole", [True, False], ids=["the pool is deleted", "it is edited"])
def test_a_claim_ends_whose_licence_is_gone(whole: bool) -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await seats(world)
            await make_claim(world, "c", board(), SEAT)
            await allocated(world)
            found = await world.objects.get(DevicePool, SPACE, "licences")
            if whole:
                await world.objects.delete(found)
            else:
                status = replace(found.status, allocations=())
                await world.objects.update_status(replace(found, status=status))
            assert await ended(world) == "MemberLost"
            await world.until(lambda: not holders(world))

    LabWorld().run(story)


def test_a_deleted_claim_gives_up_its_licence_also_while_the_service_is_away() -> None:
    async def story(world: LabWorld) -> None:
        async with world.service(), lab(world, "a"):
            await seats(world)
            await make_claim(world, "c", SEAT)
            await allocated(world)
            await world.objects.delete(await world.objects.get(DeviceClaim, SPACE, "c"))
            await world.until(lambda: users(world) == [])
            await make_claim(world, "d", SEAT)
            await allocated(world, "d")
        await world.objects.delete(await world.objects.get(DeviceClaim, SPACE, "d"))
        async with world.service():
            await make_claim(world, "e", SEAT)
            await allocated(world, "e")
            assert users(world) == [("e", "seat-0")]

    LabWorld().run_without_service(story)


@pytest.mark.parametrize("lasting", [False, True], ids=["a failure", "a crash"])
@pytest.mark.parametrize("at", range(6))
def test_after_any_failed_write_a_claim_has_all_or_nothing(at: int, lasting: bool) -> None:
    """Of the status of the pool, exporters, leases and the claim, and of new leases."""

    async def story(world: LabWorld) -> None:
        update, create = world.objects.update_status, world.objects.create
        seen, reached = 0, asyncio.Event()

        def due(value: Any) -> bool:
            nonlocal seen
            seen += isinstance(value, DevicePool | Lease)
            return seen > at and (lasting or not reached.is_set())

        async def update_status(value: Any) -> Any:
            if due(value):
                reached.set()
                raise Unavailable("gone")
            return await update(value)

        async def created(value: Any) -> Any:
            if isinstance(value, Lease) and due(value):
                reached.set()
                raise Unavailable("gone")
            return await create(value)

        async with world.service(), lab(world, "a", "b"):
            await seats(world)
            world.objects.update_status = update_status  # type: ignore[method-assign]
            world.objects.create = created  # type: ignore[method-assign]
            await make_claim(world, "c", board(), SEAT)
            await make_claim(world, "d", board(), SEAT)
            await asyncio.sleep(10)
        world.objects.update_status = update  # type: ignore[method-assign]
        world.objects.create = create  # type: ignore[method-assign]
        async with world.service():
            await world.until(lambda: world.views.exporters.get(SPACE, "b"))
            async with world.player("a"), world.player("b"):
                await world.until(lambda: "True" in (said(world)[0], said(world, "d")[0]))
                await asyncio.sleep(10)
                first, second = ("c", "d") if said(world)[0] == "True" else ("d", "c")
                assert said(world, second)[0] == "False"
                assert users(world) == [(first, "seat-0")]
                assert len(holders(world)) == 1
                await edit(world, first, release=True)
                await allocated(world, second)
                assert users(world) == [(second, "seat-0")]

    LabWorld().run_without_service(story)


def test_what_another_controller_gives_up_is_not_taken_again_at_once() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await seats(world)
            writes: list[str] = []

            def see(old: DevicePool | None, new: DevicePool | None) -> None:
                writes.append("seen")

            async def other() -> None:
                """Another controller, for which the claim must wait."""
                while True:
                    found = await world.objects.get(DevicePool, SPACE, "licences")
                    if found.status.allocations:
                        status = replace(found.status, allocations=())
                        with contextlib.suppress(Conflict):
                            await world.objects.update_status(replace(found, status=status))
                    await asyncio.sleep(0.001)

            world.views[DevicePool].listen(see)
            disagreeing = asyncio.create_task(other())
            # A booking is not finished by what it takes, so it would be taken again and again.
            begin = times.text(world.clock.now() + 60 * MINUTE)
            await make_claim(world, "c", SEAT, beginTime=begin)
            await asyncio.sleep(20)
            disagreeing.cancel()
            assert 2 <= len(writes) <= 20
            await world.until(lambda: users(world) == [("c", "seat-0")])

    LabWorld().run(story)


def test_two_controllers_never_overdraw_a_counter() -> None:
    """The newest state of the pool decides, whatever the one that asks has seen."""
    pool = codec.decode(
        DevicePool,
        {
            "metadata": {"name": "licences"},
            "spec": {
                "sharedCounters": {"seats": 1},
                "devices": [
                    {"name": f"seat-{n}", "consumesCounters": {"seats": 1}} for n in range(2)
                ],
            },
        },
    )

    def asked(name: str, device: str) -> tuple[Any, ...]:
        meta = {"name": name, "uid": name}
        spec = {"clientRef": {"name": "alice"}, "duration": "1h", "requests": [SEAT]}
        one = codec.decode(DeviceClaim, {"metadata": meta, "spec": spec})
        member = Member(request="seat", alternative=0, device=f"licences/{device}")
        answer = Answer(verdict=Verdict.SATISFIED, members=(member,))
        return pool_allocations.wanted(one, answer)["licences"]

    first = replace(pool, status=pool_allocations.taken(pool, "c", asked("c", "seat-0")))
    for device in ("seat-0", "seat-1"):
        with pytest.raises(Conflict):
            pool_allocations.taken(first, "d", asked("d", device))
    again = pool_allocations.taken(first, "c", asked("c", "seat-1"))
    assert [a.device for a in again.allocations] == ["seat-1"]
    assert pool_allocations.without(first, {"c"}).allocations == ()
