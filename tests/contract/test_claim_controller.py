"""Claims over the real registry, controllers and services: all members or none, always."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bullpen.api.kinds.accesspolicy import ExporterAccessPolicy
from bullpen.api.kinds.deviceclaim import MEMBERS_MAX, DeviceClaim
from bullpen.api.kinds.deviceclass import DeviceClass
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease, LeaseStatus
from bullpen.api.meta import LocalObjectReference
from bullpen.core import conditions
from bullpen.core.lab_index import holder_of
from bullpen.core.leases.quotas import Quotas
from bullpen.errors import Conflict, Unavailable
from bullpen.registry.garbage import GarbageCollector
from support.claim_stories import (
    allocated,
    claim,
    edit,
    enable,
    ended,
    holders,
    lab,
    leases_of,
    make,
    make_claim,
    said,
)
from support.lab_world import RETENTION, SPACE, LabWorld

HOUR = timedelta(hours=1)


def test_a_claim_for_two_becomes_two_leases_of_its_client() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b", "c"):
            await make_claim(world, "c")
            found = await allocated(world)
            assert [member.device for member in found.status.members] == ["a", "b"]
            for member in found.status.members:
                assert member.request == "boards"
                assert member.lease_ref is not None
                lease = world.lease(member.lease_ref.name)
                assert lease.spec.client_ref.name == "alice"
                assert lease.spec.duration == HOUR
                assert lease.status.exporter_ref == LocalObjectReference(name=member.device)
                assert holders(world)[member.device] == lease.metadata.name
            assert conditions.holds(found.status.conditions, "Ready")

    LabWorld().run(story)


def test_the_config_of_the_class_is_copied_when_the_devices_are_decided() -> None:
    """A later edit changes what other claims get, and nothing for this one."""

    async def configure(world: LabWorld, firmware: str) -> None:
        found = await world.objects.get(DeviceClass, "", "any")
        spec = replace(found.spec, config={"firmware": firmware})
        await world.objects.update(replace(found, spec=spec))

    def copied(found: DeviceClaim) -> list[tuple[str, int, object]]:
        assert found.status.allocation is not None
        return [
            (c.name, c.generation, c.config["firmware"]) for c in found.status.allocation.classes
        ]

    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await configure(world, "1")
            await make_claim(world, "c")
            await make_claim(world, "d")
            assert copied(await allocated(world)) == [("any", 2, "1")]
            assert claim(world, "d").status.allocation is None, "nothing is decided for it"
            await configure(world, "2")
            await world.settle()
            assert copied(claim(world)) == [("any", 2, "1")]
            await edit(world, release=True)
            second = await allocated(world, "d")
            assert copied(second) == [("any", 3, "2")]
            assert second.status.allocation is not None
            sources = [(s.kind, s.name, s.generation) for s in second.status.allocation.inventory]
            assert sources == [("Exporter", "a", 1), ("Exporter", "b", 1)]
            assert copied(claim(world)) == [("any", 2, "1")], "an ended claim keeps its record"

    LabWorld().run(story)


def test_a_claim_that_cannot_have_all_has_none_and_says_what_is_missing() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await world.make_lease("busy", exporter_ref=LocalObjectReference(name="a"))
            await world.assigned("busy")
            await make_claim(world, "c")
            await world.until(lambda: said(world) == ("False", "NotAvailable"))
            found = conditions.get(claim(world).status.conditions, "Allocated")
            assert found is not None
            assert "busy has a" in found.message
            assert not leases_of(world)
            assert holders(world) == {"a": "busy"}
            await world.edit_lease("busy", release=True)
            await allocated(world)

    LabWorld().run(story)


def test_a_claim_for_all_of_too_many_devices_is_told_so() -> None:
    async def story(world: LabWorld) -> None:
        boards = [f"board-{number:02}" for number in range(MEMBERS_MAX + 1)]
        async with lab(world, *boards):
            whole = {"deviceClassName": "any", "allocationMode": "All"}
            await make_claim(world, "c", {"name": "boards", "exactly": whole})
            await world.until(lambda: said(world) == ("False", "TooManyDevices"))
            assert holders(world) == {}

    LabWorld().run(story)


def test_an_alternative_opens_only_when_it_is_due() -> None:
    later = {"name": "late", "deviceClassName": "any", "after": "5m"}
    first = {
        "name": "early",
        "deviceClassName": "any",
        "selectors": [{"labels": {"matchLabels": {"board": "rare"}}}],
    }

    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await make_claim(world, "c", {"name": "dut", "firstAvailable": [first, later]})
            await asyncio.sleep(290)
            assert said(world)[0] == "False"
            await asyncio.sleep(20)
            (member,) = (await allocated(world)).status.members
            assert (member.request, member.alternative) == ("dut", "late")

    LabWorld().run(story)


def test_a_released_claim_ends_all_its_leases() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await make_claim(world, "c")
            await allocated(world)
            await edit(world, release=True)
            assert await ended(world) == "Released"
            await world.until(lambda: not holders(world))

    LabWorld().run(story)


def test_a_deleted_claim_leaves_no_lease_and_no_exporter_taken() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await make_claim(world, "c")
            collector = asyncio.create_task(GarbageCollector(world.registry).run())
            await world.objects.delete(await allocated(world))
            await world.until(lambda: not holders(world) and not leases_of(world))
            collector.cancel()

    LabWorld().run(story)


def test_the_leases_of_a_claim_reach_their_end_together() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await make_claim(world, "c")
            members = (await allocated(world)).status.members
            assert await ended(world) == "Expired"
            ends = {world.lease(m.lease_ref.name).status.end_time for m in members if m.lease_ref}
            assert len(ends) == 1
            assert not holders(world)

    LabWorld().run(story)


def test_a_member_that_is_lost_ends_the_claim() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await make_claim(world, "c")
            members = (await allocated(world)).status.members
            assert members[0].lease_ref is not None
            await world.edit_lease(members[0].lease_ref.name, release=True)
            assert await ended(world) == "MemberLost"
            await world.until(lambda: not holders(world))

    LabWorld().run(story)


def test_a_claim_that_is_extended_or_transferred_does_it_to_all_leases() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await make_claim(world, "c")
            await allocated(world)
            await edit(world, duration=2 * HOUR, client_ref=LocalObjectReference(name="bob"))
            bob = LocalObjectReference(name="bob")
            await world.until(lambda: {x.status.client_ref for x in leases_of(world)} == {bob})
            assert [lease.spec.duration for lease in leases_of(world)] == [2 * HOUR, 2 * HOUR]

    LabWorld().run(story)


def test_an_ended_claim_is_deleted_after_the_retention() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await make_claim(world, "c", release=True)
            await ended(world)
            await asyncio.sleep(RETENTION.total_seconds() + 60)
            assert world.views[DeviceClaim].get(SPACE, "c") is None

    LabWorld().run(story)


def test_a_claim_for_exporters_that_are_not_connected_waits_for_them() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a"):
            await world.make_exporter("b")
            await make_claim(world, "c")
            await world.until(lambda: said(world) == ("False", "Offline"))
            async with world.player("b"):
                await allocated(world)

    LabWorld().run(story)


def test_a_claim_of_an_unknown_client_waits() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await make_claim(world, "c", clientRef={"name": "nobody"})
            await world.until(lambda: said(world) == ("False", "ClientNotFound"))
            assert not leases_of(world)

    LabWorld().run(story)


WRITES = 4
"""Of two exporters and two leases, in this order."""


class Troubled:
    """Refuses one of the status writes of exporters and leases, or stops the service at it."""

    def __init__(
        self, world: LabWorld, at: int, error: Exception, *, lasting: bool = False
    ) -> None:
        self.at, self.error, self.lasting = at, error, lasting
        self.seen = 0
        self.reached = asyncio.Event()
        real = world.objects.update_status

        async def update_status(value: Any) -> Any:
            counts = isinstance(value, Exporter | Lease) and (
                bool(holder_of(value)) if isinstance(value, Exporter) else value.status.exporter_ref
            )
            if counts and not self.reached.is_set():
                self.seen += 1
            due = (counts or self.lasting) and self.seen > self.at
            if due and (self.lasting or not self.reached.is_set()):
                self.reached.set()
                raise self.error
            return await real(value)

        world.objects.update_status = update_status  # type: ignore[method-assign]
        self._world, self._real = world, real

    def over(self) -> None:
        self._world.objects.update_status = self._real  # type: ignore[method-assign]


def whole_or_nothing(world: LabWorld) -> None:
    """No claim has a part of its exporters, as far as its leases say."""
    for name in {
        r.name for x in world.views.leases.all(SPACE) for r in x.metadata.owner_references
    }:
        mine = leases_of(world, name)
        assert len({lease.status.exporter_ref is not None for lease in mine}) <= 1


@pytest.mark.parametrize(
    "error", [Conflict("changed"), Unavailable("busy")], ids=["changed", "busy"]
)
@pytest.mark.parametrize("at", range(WRITES))
def test_a_refused_write_leaves_all_or_none_and_the_claim_is_served_later(
    at: int, error: Exception
) -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            trouble = Troubled(world, at, error)
            await make_claim(world, "c")
            await asyncio.wait_for(trouble.reached.wait(), 60)
            await allocated(world)
            whole_or_nothing(world)
            assert set(holders(world)) == {"a", "b"}

    LabWorld().run(story)


@pytest.mark.parametrize("name", ["a", "b"])
def test_an_exporter_disabled_at_the_last_moment_leaves_none_taken(name: str) -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            real, reached = world.objects.update_status, asyncio.Event()

            async def update_status(value: Any) -> Any:
                takes = isinstance(value, Exporter) and holder_of(value)
                if takes and value.metadata.name == name and not reached.is_set():
                    reached.set()
                    await enable(world, name, enabled=False)
                return await real(value)

            world.objects.update_status = update_status  # type: ignore[method-assign]
            await make_claim(world, "c")
            await asyncio.wait_for(reached.wait(), 60)
            await world.until(lambda: said(world)[0] == "False")
            await world.until(lambda: not holders(world) and not leases_of(world))
            await enable(world, name, enabled=True)
            await allocated(world)

    LabWorld().run(story)


@pytest.mark.parametrize("at", range(WRITES))
def test_a_crash_after_any_write_is_finished_or_undone_by_the_next_start(at: int) -> None:
    """After the crash one exporter is disabled, so that only what was committed can be kept."""

    async def story(world: LabWorld) -> None:
        async with world.service(), lab(world, "a", "b", obey=False):
            trouble = Troubled(world, at, Unavailable("gone"), lasting=True)
            await make_claim(world, "c")
            await asyncio.wait_for(trouble.reached.wait(), 60)
        trouble.over()
        await enable(world, "b", enabled=False)
        async with world.service():
            await world.until(lambda: world.views.exporters.get(SPACE, "b"))
            async with world.player("a"), world.player("b"):
                await asyncio.sleep(30)
                committed = at >= 2
                assert set(holders(world)) == ({"a", "b"} if committed else set())
                assert (said(world)[0] == "True") == committed
                await enable(world, "b", enabled=True)
                await allocated(world)

    LabWorld().run_without_service(story)


def test_two_claims_for_overlapping_sets_never_hold_half_of_each_other() -> None:
    def of(*names: str) -> dict[str, Any]:
        chosen = {"key": "exporter", "operator": "In", "values": list(names)}
        return {
            "name": "boards",
            "exactly": {
                "deviceClassName": "any",
                "count": 2,
                "selectors": [{"labels": {"matchExpressions": [chosen]}}],
            },
        }

    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b", "c"):
            asked = {"one": of("a", "b"), "two": of("b", "c"), "three": of("a", "c")}
            for name, request in asked.items():
                await make_claim(world, name, request)
            served: set[str] = set()
            while len(served) < len(asked):
                await world.until(lambda: any(said(world, n)[0] == "True" for n in asked))
                for _ in range(100):
                    whole_or_nothing(world)
                    await asyncio.sleep(0.01)
                active = [name for name in asked if said(world, name)[0] == "True"]
                assert len(active) == 1, "any two of them have an exporter in common"
                served.update(active)
                await edit(world, active[0], release=True)
                await ended(world, active[0])

    LabWorld().run(story)


@pytest.mark.parametrize("lease_first", [True, False], ids=["lease first", "claim first"])
def test_a_lease_and_a_claim_that_race_for_one_exporter(lease_first: bool) -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            made = [
                world.make_lease(
                    "rival", client="bob", exporter_ref=LocalObjectReference(name="b")
                ),
                make_claim(world, "c"),
            ]
            await asyncio.gather(*(made if lease_first else reversed(made)))
            await world.settle()
            rival = world.lease("rival").status.exporter_ref is not None
            assert rival != (said(world)[0] == "True"), "one of them has it"
            assert len(holders(world)) == (1 if rival else 2)
            if rival:
                await world.edit_lease("rival", release=True)
                await allocated(world)
            else:
                await edit(world, release=True)
                assert await world.assigned("rival") == "b"

    LabWorld().run(story)


def test_a_claim_gives_up_exporters_that_are_gone_and_takes_others() -> None:
    """Leases that wait for an exporter which the claim does not choose any more are withdrawn."""

    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b", "z", obey=False):
            trouble = Troubled(world, 1, Unavailable("busy"), lasting=True)
            await make_claim(world, "c")
            await asyncio.wait_for(trouble.reached.wait(), 60)
            await enable(world, "b", enabled=False)
            trouble.over()
            served = await allocated(world)
            assert [member.device for member in served.status.members] == ["a", "z"]
            assert len(leases_of(world)) == 2

    LabWorld().run(story)


@pytest.mark.parametrize(
    "allowed", [Quotas(active_max=2), Quotas(duration_max=HOUR / 2)], ids=["active", "duration"]
)
def test_a_claim_beyond_the_quota_of_its_client_waits(allowed: Quotas) -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b", "c"):
            await world.make_lease("mine", duration=HOUR / 4)
            await world.assigned("mine")
            await make_claim(world, "c")
            await world.until(lambda: said(world) == ("False", "QuotaExceeded"))
            assert not leases_of(world)
            await make_claim(world, "other", clientRef={"name": "bob"}, duration="15m")
            await allocated(world, "other")

    world = LabWorld()
    world.quotas = allowed
    world.run(story)


def test_two_claims_that_are_within_the_quota_only_one_by_one() -> None:
    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b", "c", "d"):
            await make_claim(world, "c")
            await make_claim(world, "d")
            await allocated(world, "c")
            await world.until(lambda: said(world, "d") == ("False", "QuotaExceeded"))
            await edit(world, "c", release=True)
            await allocated(world, "d")

    world = LabWorld()
    world.quotas = Quotas(active_max=3)
    world.run(story)


def test_policies_restrict_claims_as_they_restrict_leases() -> None:
    policy = {
        "exporterSelector": {"matchLabels": {"board": "x"}},
        "policies": [{"priority": 1, "from": [{"clientSelector": {"matchLabels": {"team": "t"}}}]}],
    }

    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b"):
            await make(world, ExporterAccessPolicy, "p", spec=policy)
            await world.settle()
            await make_claim(world, "c")
            await world.until(lambda: said(world) == ("False", "Unsatisfiable"))
            assert not leases_of(world)
            alice = world.client("alice")
            meta = replace(alice.metadata, labels={"team": "t"})
            await world.objects.update(replace(alice, metadata=meta))
            await allocated(world)

    LabWorld().run(story)


def test_a_waiting_lease_too_many_is_withdrawn_from_a_claim_that_has_all() -> None:
    """Found by the simulator: two controllers at once had made leases for different exporters."""

    async def story(world: LabWorld) -> None:
        async with lab(world, "a", "b", "c"):
            await make_claim(world, "c")
            await allocated(world)
            (first, _) = leases_of(world)
            elsewhere = replace(first.spec, exporter_ref=LocalObjectReference(name="c"))
            meta = replace(first.metadata, name="too-many", uid="", resource_version="")
            extra = replace(first, metadata=meta, spec=elsewhere, status=LeaseStatus())
            await world.objects.create(extra)
            await world.until(lambda: len(leases_of(world)) == 2)
            assert "c" not in holders(world)

    LabWorld().run(story)
