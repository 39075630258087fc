"""Leases and exporters kept together, whatever dies in between."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.core import Event
from bullpen.api.kinds.exporter import Exporter, ExporterStatusValue
from bullpen.api.kinds.lease import ENDED_LABEL, Lease
from bullpen.api.meta import LocalObjectReference
from bullpen.controllers.leases import lease_retention
from bullpen.core.leases import lifecycle
from bullpen.errors import NotFound
from bullpen.kit.selectors import EVERYTHING
from bullpen.registry.lists import is_cold
from bullpen.store.packing import Packed, kept
from support.lab_world import RETENTION, SPACE, LabWorld

S = ExporterStatusValue
HOUR = timedelta(hours=1)


@pytest.fixture
def world() -> LabWorld:
    return LabWorld()


def holder(world: LabWorld, name: str = "e1") -> str:
    ref = world.exporter(name).status.lease_ref
    return ref.name if ref else ""


async def stored(world: LabWorld, name: str) -> Lease:
    return await world.objects.get(Lease, SPACE, name)


async def reasons(world: LabWorld, name: str) -> list[str]:
    found = (await world.objects.list(Event)).items
    return [event.reason for event in found if event.involved_object.name == name]


def test_a_lease_is_served_ended_and_marked(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.make_lease("one")
            assert await world.assigned("one") == "e1"
            assert holder(world) == "one"
            assert world.exporter().status.lease_uid == world.lease("one").metadata.uid
            await asyncio.sleep(HOUR.total_seconds() + 1)
            assert await world.ended("one") == "Expired"
            await world.settle()
            assert holder(world) == ""
            assert world.lease("one").metadata.labels[ENDED_LABEL] == "true"
            assert sorted(await reasons(world, "one")) == ["LeaseAssigned", "LeaseExpired"]

    world.run(story)


def test_waiting_leases_are_served_in_the_order_they_came(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            names = ["m", "z", "a", "k", "b"]
            for name in names:
                await world.make_lease(name)
            served: list[str] = []
            for _ in names:
                await world.until(lambda: holder(world) not in ("", *served))
                served.append(holder(world))
                await world.edit_lease(served[-1], release=True)
            assert served == names

    world.run(story)


def test_a_crash_between_the_two_writes_is_finished(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        exporter, lease = await world.make_exporter(), await world.make_lease("one")
        taken = replace(
            exporter.status,
            lease_ref=LocalObjectReference(name="one"),
            lease_uid=lease.metadata.uid,
            lease_epoch=7,
        )
        await world.objects.update_status(replace(exporter, status=taken))
        async with world.service():
            assert await world.assigned("one") == "e1"
            assert world.lease("one").status.epoch == 7
            assert holder(world) == "one"

    world.run_without_service(story)


def test_a_crash_after_the_end_frees_the_exporter_and_marks_the_lease(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.service(), world.player():
            await world.make_lease("one")
            await world.assigned("one")
        lease = await stored(world, "one")
        status = lifecycle.ended(lease, reason="Released", message="m", now=world.clock.now())
        await world.objects.update_status(replace(lease, status=status))
        async with world.service():
            await world.settle()
            assert holder(world) == ""
            assert world.lease("one").metadata.labels[ENDED_LABEL] == "true"

    world.run_without_service(story)


def test_a_restart_keeps_what_is_active(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.service(), world.player():
            await world.make_lease("one")
            await world.assigned("one")
        before = await stored(world, "one")
        async with world.service():
            await asyncio.sleep(30)
            assert await stored(world, "one") == before
            assert holder(world) == "one"

    world.run_without_service(story)


def test_an_exporter_that_forgot_its_lease_is_taken_again(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.make_lease("one")
            await world.assigned("one")
            await world.settle()
            found = world.exporter()
            status = replace(found.status, lease_ref=None, lease_uid="")
            await world.objects.update_status(replace(found, status=status))
            await world.settle()
            assert holder(world) == "one"
            assert not world.lease("one").status.ended

    world.run(story)


def test_a_removed_exporter_ends_its_lease_and_a_new_one_of_its_name_is_free(
    world: LabWorld,
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.service(), world.player() as player:
            await world.make_lease("one")
            await world.assigned("one")
            await world.settle()
            player.obeys = False
            player.hang_up()
        # Both happen before anybody looks: only the epoch tells the two apart.
        await world.objects.delete(await world.objects.get(Exporter, SPACE, "e1"))
        await world.make_exporter()
        async with world.service():
            assert await world.ended("one") == "ExporterRemoved"
            assert holder(world) == ""

    world.run_without_service(story)


def test_a_removed_client_loses_its_active_leases_and_no_others(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player(), world.player("e2"):
            await world.make_lease("hers")
            await world.make_lease("his", client="bob")
            await world.assigned("hers")
            await world.assigned("his")
            await world.objects.delete(await world.objects.get(Client, SPACE, "alice"))
            assert await world.ended("hers") == "ClientRemoved"
            await world.settle()
            assert not world.lease("his").status.ended

    world.run(story)


def test_a_deleted_lease_frees_its_exporter_for_the_next(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.make_lease("one")
            await world.assigned("one")
            await world.make_lease("two", client="bob")
            await world.settle()
            await world.objects.delete(world.lease("one"))
            assert await world.assigned("two") == "e1"

    world.run(story)


def test_a_transfer_counts_up_on_both_sides_and_survives_a_crash_in_the_middle(
    world: LabWorld,
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.service(), world.player():
            await world.make_lease("one")
            await world.assigned("one")
            await world.settle()
        before = (await stored(world, "one")).status.epoch
        await world.edit_lease("one", client_ref=LocalObjectReference(name="bob"))
        exporter = await world.objects.get(Exporter, SPACE, "e1")
        halfway = replace(exporter.status, lease_epoch=before + 1)
        await world.objects.update_status(replace(exporter, status=halfway))
        async with world.service():
            await world.until(lambda: lifecycle.holder(world.lease("one")) == "bob")
            await world.settle()
            lease = world.lease("one")
            assert lease.status.epoch == world.exporter().status.lease_epoch > before
            assert not lease.status.ended
            assert "LeaseTransferred" in await reasons(world, "one")

    world.run_without_service(story)


def test_an_exporter_is_given_out_only_when_it_says_it_is_available(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            await world.make_lease("one")
            await world.assigned("one")
            await world.settle()
            player.obeys = False
            await world.make_lease("two", client="bob")
            await world.edit_lease("one", release=True)
            await asyncio.sleep(60)
            two = world.lease("two").status
            assert two.exporter_ref is None
            assert two.conditions[-1].reason == "NotReady"
            await player.report(S.AVAILABLE)
            assert await world.assigned("two") == "e1"

    world.run(story)


def test_ended_leases_are_kept_for_their_time_and_then_forgotten(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.make_lease("one")
            await world.assigned("one")
            await world.edit_lease("one", release=True)
            await world.ended("one")
            await asyncio.sleep(RETENTION.total_seconds() - 60)
            assert world.lease("one").status.ended
            await asyncio.sleep(lease_retention.pause(RETENTION).total_seconds() + 60)
            with pytest.raises(NotFound):
                world.lease("one")

    world.run(story)


def test_ended_leases_leave_the_view_and_are_not_loaded_at_the_start(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.service(), world.player():
            await world.make_lease("one")
            await world.assigned("one")
            await world.edit_lease("one", release=True)
            await world.ended("one")
            await world.until(lambda: not tuple(world.views.leases.all()))
        async with world.service():
            assert not tuple(world.views.leases.all())
            found = await world.leases.get(SPACE, "one")
            assert found.status.ended
            assert found.metadata.labels[ENDED_LABEL] == "true"
            listed = await world.leases.list(
                SPACE, labels=EVERYTHING, tags=EVERYTHING, active=False
            )
            assert [lease.metadata.name for lease in listed] == ["one"]

    world.run_without_service(story)


def test_an_ended_lease_is_cold_and_takes_little_room(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.make_lease("one")
            await world.assigned("one")
            key = world.registry.resources.of(Lease).key(SPACE, "one")
            entry = world.registry.store.get(key)
            assert entry is not None
            assert kept(entry, is_cold) is entry
            await world.edit_lease("one", release=True)
            await world.ended("one")
            await world.until(lambda: not tuple(world.views.leases.all()))
            entry = world.registry.store.get(key)
            assert entry is not None
            packed = kept(entry, is_cold)
            assert isinstance(packed, Packed)
            assert len(packed.data) < 400

    world.run(story)


def test_an_open_lease_that_is_labelled_as_ended_is_ended_nevertheless(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player():
            await world.make_lease("one", duration=timedelta(hours=2))
            await world.assigned("one")
            await world.settle()
            mislabelled = world.lease("one")
            labels = {**mislabelled.metadata.labels, ENDED_LABEL: "true"}
            meta = replace(mislabelled.metadata, labels=labels)
            await world.objects.update(replace(mislabelled, metadata=meta))
            await world.until(lambda: ENDED_LABEL not in world.lease("one").metadata.labels)
            await asyncio.sleep(timedelta(hours=2).total_seconds())
            assert await world.ended("one") == "Expired"

    world.run(story)


def test_a_waiting_lease_that_is_labelled_as_ended_is_served_nevertheless(world: LabWorld) -> None:
    async def story(world: LabWorld) -> None:
        await world.make_exporter()
        await world.make_lease("one", duration=timedelta(days=1))
        await world.settle()
        lease = world.lease("one")
        meta = replace(lease.metadata, labels={ENDED_LABEL: "true"})
        await world.objects.update(replace(lease, metadata=meta))
        await asyncio.sleep(lease_retention.FIRST_PAUSE_MAX.total_seconds() + 1)
        async with world.player():
            assert await world.assigned("one") == "e1"

    world.run(story)


def test_a_conflict_is_retried_and_nothing_is_doubled(world: LabWorld) -> None:
    """Somebody edits the exporter and the lease all the time while they are being joined."""

    async def story(world: LabWorld) -> None:
        async with world.player() as player:
            player.obeys = False
            await world.make_lease("one")
            for number in range(20):
                await player.report(S.AVAILABLE, f"word {number}")
                lease = await stored(world, "one")
                labels = {**lease.metadata.labels, "n": str(number)}
                meta = replace(lease.metadata, labels=labels)
                await world.objects.update(replace(lease, metadata=meta))
            assert await world.assigned("one") == "e1"
            assert world.exporter().status.lease_epoch == world.lease("one").status.epoch == 1

    world.run(story)


def test_a_lease_that_comes_before_its_exporter_waits_a_moment_for_it(world: LabWorld) -> None:
    world.unmatched_wait = timedelta(seconds=5)

    async def story(world: LabWorld) -> None:
        await world.make_lease("one")
        await asyncio.sleep(4)
        said = world.lease("one").status.conditions[-1]
        assert (said.type, said.reason) == ("Pending", "NoMatch")
        async with world.player():
            assert await world.assigned("one") == "e1"

    world.run(story)


def test_a_lease_that_nothing_ever_matches_is_refused_after_that_moment(world: LabWorld) -> None:
    world.unmatched_wait = timedelta(seconds=5)

    async def story(world: LabWorld) -> None:
        await world.make_lease("one")
        await asyncio.sleep(4)
        assert not world.lease("one").status.ended
        await asyncio.sleep(2)
        assert await world.ended("one") == "NoAccess"

    world.run(story)


def test_a_lease_without_the_right_to_what_matches_is_refused_at_once(world: LabWorld) -> None:
    world.unmatched_wait = timedelta(hours=1)

    async def story(world: LabWorld) -> None:
        await world.make_exporter()
        await world.make_lease("one", client="stranger")
        assert await world.ended("one") == "NoAccess"

    world.run(story)
