"""Controllers over objects that answer late, not at all, or with an error.

Each of these days was first had by the simulator.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

from bullpen.api.fields import Kind
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease
from bullpen.api.meta import LocalObjectReference
from bullpen.api.objects import Feed, Seen
from bullpen.controllers.leases import lease_retention
from bullpen.controllers.targets.instance_view import InstanceView, InstanceViewReconciler
from bullpen.errors import StorageFailed, Unreachable
from bullpen.provisioners.base import Connection, InstanceSpec, Profile
from bullpen.provisioners.fake import FakeProvisioner
from bullpen.registry.objects import RegistryObjects
from support.lab_world import RETENTION, LabWorld
from support.pool_world import World

K = TypeVar("K", bound=Kind)
A = TypeVar("A", bound=Kind)
B = TypeVar("B", bound=Kind)

LATE_SECONDS = 1.0


class FarAway(RegistryObjects):
    """Exporters are seen late, and every second creation of one is made but not answered."""

    made = 0

    def watch(self, kind: type[K], *, since: int) -> Any:
        feed = super().watch(kind, since=since)
        return LateFeed(feed) if kind is Exporter else feed

    async def create(self, value: K) -> K:
        written = await super().create(value)
        if isinstance(value, Exporter):
            self.made += 1
            if self.made % 2:
                raise Unreachable("the API did not answer in time")
        return written


class LateFeed:
    def __init__(self, feed: Feed[Any]) -> None:
        self._feed = feed

    async def next(self) -> Iterable[Seen[Any]]:
        found = await self._feed.next()
        await asyncio.sleep(LATE_SECONDS)
        return found

    def close(self) -> None:
        self._feed.close()


@pytest.mark.parametrize(
    "ceiling", [pytest.param(3, id="below a ceiling"), pytest.param(0, id="without a ceiling")]
)
def test_a_creation_that_was_not_answered_is_not_made_again(ceiling: int) -> None:
    async def story(world: World) -> None:
        assert isinstance(world.objects, FarAway)
        await world.make_class()
        await world.make_set(min_available_replicas=3, max_replicas=ceiling)
        await world.until(lambda: world.available(3))
        assert world.objects.made == 3

    world = World()
    world.objects = FarAway(world.registry, manager="bullpen")
    world.run(story)


def test_a_lease_does_not_end_for_want_of_what_a_view_has_not_seen_yet() -> None:
    async def story(world: LabWorld) -> None:
        async with world.player("e1"):
            await world.make_lease("a")
            assert await world.assigned("a") == "e1"
        world.views.exporters._drop(world.exporter("e1"))
        await asyncio.sleep(1)
        assert not world.lease("a").status.ended
        world.views.clients._drop(world.client("alice"))
        await asyncio.sleep(1)
        assert not world.lease("a").status.ended

    LabWorld().run(story)


def test_an_exporter_is_not_taken_from_a_lease_that_a_view_has_not_seen_yet() -> None:
    async def story(world: LabWorld) -> None:
        async with world.player("e1") as player:
            await world.make_lease("a")
            assert await world.assigned("a") == "e1"
            await world.settle()
            lease = world.lease("a")
            world.views.leases._drop(lease)
            await asyncio.sleep(1)
            assert world.exporter("e1").status.lease_uid == lease.metadata.uid
            assert player.told == ["", "a"]

    LabWorld().run(story)


def test_an_exporter_is_not_given_back_to_a_lease_that_has_ended_unseen() -> None:
    async def story(world: LabWorld) -> None:
        async with world.player("e1"):
            await world.make_lease("a")
            assert await world.assigned("a") == "e1"
            await world.settle()
            active = world.lease("a")
            await world.edit_lease("a", release=True)
            await world.until(lambda: world.lease("a").status.ended)
            await world.settle()
            free = world.exporter("e1")
            world.views.leases._set(active)
            await asyncio.sleep(1)
            assert world.lease("a").status.ended
            assert world.exporter("e1") == free

    LabWorld().run(story)


class Fleeting(RegistryObjects):
    """The next exporter that is asked for is gone before the answer arrives."""

    doomed = False

    async def get(self, kind: type[K], namespace: str, name: str) -> K:
        found = await super().get(kind, namespace, name)
        if self.doomed and isinstance(found, Exporter):
            self.doomed = False
            await self.delete(found)
            await asyncio.sleep(LATE_SECONDS)
        return found


def test_an_exporter_that_goes_in_the_middle_of_a_pass_is_no_bug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = LabWorld()
    objects = world.objects = Fleeting(world.registry, manager="bullpen")

    async def story(world: LabWorld) -> None:
        async with world.player("e1"):
            await world.make_lease("a")
            assert await world.assigned("a") == "e1"
        objects.doomed = True
        world.views.exporters._drop(world.exporter("e1"))
        await asyncio.sleep(LATE_SECONDS / 2)
        await world.edit_lease("a", client_ref=LocalObjectReference(name="bob"))
        await world.until(lambda: world.lease("a").status.ended)

    world.run(story)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


class FullDisk(RegistryObjects):
    """The next assignments fail, and nothing of them is written."""

    failures = 2

    async def update_statuses(self, first: A, second: B) -> tuple[A, B]:
        if self.failures:
            self.failures -= 1
            raise StorageFailed("no space left on device")
        return await super().update_statuses(first, second)


def test_a_full_disk_in_a_pass_is_no_bug_and_the_pass_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: LabWorld) -> None:
        async with world.player("e1"):
            await world.make_lease("a")
            assert await world.assigned("a") == "e1"

    world = LabWorld()
    world.objects = FullDisk(world.registry, manager="bullpen")
    with caplog.at_level(logging.ERROR, logger="bullpen"):
        world.run(story)
    assert not [record for record in caplog.records if record.exc_info]
    assert world.objects.failures == 0


class SetClock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def steady(self) -> timedelta:
        return timedelta(0)


def spec(name: str, uid: str) -> InstanceSpec:
    return InstanceSpec(
        key=("a", name),
        owner_uid=uid,
        profile=Profile(provisioner=FakeProvisioner.name),
        connection=Connection(endpoint="", token="", ca_pem=""),
    )


async def test_a_clock_that_is_set_back_does_not_stop_looking_at_the_instances() -> None:
    clock, provisioner = SetClock(), FakeProvisioner(random.Random(1))
    instance_view = InstanceView((provisioner,), clock=clock)
    reconciler = InstanceViewReconciler(instance_view, clock=clock)
    await provisioner.ensure(spec("one", "1"))
    await reconciler.reconcile(provisioner.name)
    await provisioner.ensure(spec("two", "2"))
    clock.time -= timedelta(hours=1)
    await reconciler.reconcile(provisioner.name)
    assert len(list(instance_view.all())) == 2


class Deaf(RegistryObjects):
    """Deletions of leases are made, and nobody hears of them for a while."""

    deletions = 0

    def watch(self, kind: type[K], *, since: int) -> Any:
        feed = super().watch(kind, since=since)
        return LateFeed(feed) if kind is Lease else feed

    async def delete(self, value: Kind) -> None:
        self.deletions += isinstance(value, Lease)
        await super().delete(value)


def test_a_lease_is_deleted_once_although_the_watch_tells_late() -> None:
    async def story(world: LabWorld) -> None:
        assert isinstance(world.objects, Deaf)
        async with world.player("e1"):
            await world.make_lease("a")
            await asyncio.sleep(LATE_SECONDS + 1)
            await world.assigned("a")
            await world.edit_lease("a", release=True)
            await world.ended("a")
            longest = RETENTION + lease_retention.pause(RETENTION)
            await asyncio.sleep(longest.total_seconds() + 5)
            assert world.objects.deletions == 1

    world = LabWorld()
    world.objects = Deaf(world.registry, manager="bullpen")
    world.run(story)
