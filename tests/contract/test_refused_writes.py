"""A pool whose writes the API server refuses says so, and goes on when it may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import pytest

from bullpen.api.fields import Kind
from bullpen.api.kinds.exporter import Exporter
from bullpen.core.pools import refusals
from bullpen.errors import Forbidden, Invalid, LabError
from bullpen.registry.objects import RegistryObjects
from support.pool_world import World

K = TypeVar("K", bound=Kind)

QUOTA = Forbidden('exceeded quota: lab, requested: count/exporters=1, used: "2", limited: "2"')


@dataclass
class Guard:
    """Which writes of exporters are refused, and how many were."""

    create: Callable[[Exporter], LabError | None] = lambda _: None
    drain: Callable[[Exporter], LabError | None] = lambda _: None
    relabel: Callable[[Exporter], LabError | None] = lambda _: None
    delete: Callable[[Exporter], LabError | None] = lambda _: None
    refused: int = 0

    def check(self, error: LabError | None) -> None:
        if error is not None:
            self.refused += 1
            raise error


class GuardedObjects(RegistryObjects):
    """The objects behind admission that refuses some writes of the pool controller."""

    def __init__(self, world: World) -> None:
        super().__init__(world.registry, manager="bullpen")
        self.guard = Guard()

    async def create(self, value: K) -> K:
        if isinstance(value, Exporter):
            self.guard.check(self.guard.create(value))
        return await super().create(value)

    async def update(self, value: K) -> K:
        if isinstance(value, Exporter):
            refuse = self.guard.relabel if value.spec.enabled else self.guard.drain
            self.guard.check(refuse(value))
        return await super().update(value)

    async def delete(self, value: Kind) -> None:
        if isinstance(value, Exporter):
            self.guard.check(self.guard.delete(value))
        await super().delete(value)


def guarded() -> tuple[World, Guard]:
    world = World()
    world.objects = objects = GuardedObjects(world)
    return world, objects.guard


def test_a_create_over_the_quota_is_said_and_tried_again() -> None:
    world, guard = guarded()

    async def story(world: World) -> None:
        guard.create = lambda new: None if new.metadata.name in ("qemu-0", "qemu-1") else QUOTA
        await world.make_class()
        await world.make_set(min_available_replicas=3, max_replicas=6)
        await world.until(lambda: world.reason("Degraded") == "CreateRefused", seconds=5)
        said = world.condition("Degraded").message
        assert "refused to create exporter qemu-" in said
        assert "Forbidden: exceeded quota" in said
        await world.until(lambda: world.available(2))
        assert world.reason("Progressing") == "Stalled"
        assert world.condition("SetHealthy").status == "False"
        (event, *_) = await world.events("FailedCreate")
        assert event.type == "Warning"
        assert "exceeded quota" in event.message
        await world.ask("a")
        await world.ask("b")
        await world.ask("c")
        await world.until(lambda: "exceeded quota" in world.waits("c"), what="the lease is told")
        guard.create = lambda _: None
        await world.until(lambda: world.got("c"), seconds=90, what="the next try")
        await world.until(lambda: world.reason("Degraded") == "Healthy", seconds=60)
        assert not world.status().refused_writes

    world.run(story)


def test_a_refused_create_is_not_repeated_without_a_pause() -> None:
    world, guard = guarded()

    async def story(world: World) -> None:
        guard.create = lambda _: QUOTA
        await world.make_class()
        await world.make_set(min_available_replicas=100, max_replicas=0)
        await world.until(lambda: world.status().refused_writes)
        assert guard.refused <= 8, "the first batch is the last"
        await world.sleep(3600)
        fewest = 3600 / refusals.BACKOFF.cap.total_seconds()
        assert fewest <= guard.refused <= 2 * fewest + 20

    world.run(story)


def test_a_refusal_is_not_forgotten_in_a_restart_and_an_edit_is_tried_at_once() -> None:
    world, guard = guarded()

    async def story(world: World) -> None:
        guard.create = lambda _: Invalid("metadata.labels: not here")
        async with world.service():
            await world.make_class()
            await world.make_set(min_available_replicas=1)
            await world.until(lambda: guard.refused == 7, seconds=300)
        async with world.service():
            await world.sleep(1)
            assert guard.refused == 7
            assert world.reason("Degraded") == "CreateRefused"
            assert not await world.events("ExporterSetRecovered")
            guard.create = lambda _: None
            await world.edit_set(min_replicas=1)
            await world.until(lambda: world.names(), seconds=2, what="the edit is tried")

    world.run_without_service(story)


def test_a_create_that_is_no_longer_wanted_is_no_longer_complained_about() -> None:
    world, guard = guarded()

    async def story(world: World) -> None:
        guard.create = lambda _: QUOTA
        await world.make_class()
        await world.make_set()
        await world.ask("job")
        await world.until(lambda: world.reason("Degraded") == "CreateRefused")
        await world.release("job")
        await world.until(lambda: world.reason("Degraded") == "Healthy", seconds=5)

    world.run(story)


def test_a_refused_delete_and_a_refused_drain_are_said_and_tried_again() -> None:
    world, guard = guarded()
    refusal = Forbidden("bullpen cannot delete resource exporters")

    async def story(world: World) -> None:
        cooldown = timedelta(seconds=30)
        await world.make_class()
        await world.make_set(min_available_replicas=2, scale_down_cooldown=cooldown)
        await world.until(lambda: world.available(2))
        guard.drain = lambda _: refusal
        await world.edit_set(min_available_replicas=1)
        await world.until(lambda: world.reason("Degraded") == "DrainRefused")
        assert await world.events("FailedDrain")
        assert world.available(2)
        guard.drain = lambda _: None
        guard.delete = lambda _: refusal
        await world.until(lambda: world.reason("Degraded") == "DeleteRefused", seconds=25)
        assert await world.events("FailedDelete")
        await world.ask("job")
        await world.until(lambda: world.got("job"))
        await world.until(lambda: world.available(1), what="creates go on meanwhile")
        guard.delete = lambda _: None
        await world.until(lambda: len(world.names()) == 2, seconds=90)
        await world.until(lambda: world.reason("Degraded") == "Healthy", seconds=5)

    world.run(story)


def test_refused_labels_are_said_and_hold_up_nothing_else() -> None:
    world, guard = guarded()
    labels = {"jumpstarter.dev/board": "qemu"}

    async def story(world: World) -> None:
        def refuse(exporter: Exporter) -> LabError | None:
            return QUOTA if labels.items() <= exporter.metadata.labels.items() else None

        guard.relabel = refuse
        await world.make_class()
        await world.make_set(labels=labels, min_available_replicas=1)
        await world.until(lambda: world.reason("Degraded") == "RelabelRefused")
        guard.relabel = lambda _: None
        await world.ask("job", labels=labels)
        await world.until(lambda: world.got("job"), seconds=90)

    world.run(story)


@pytest.mark.parametrize("step", [timedelta(hours=1), timedelta(hours=-1)], ids=["ahead", "back"])
def test_a_refused_creation_is_tried_again_in_time_although_the_clock_was_set(
    step: timedelta,
) -> None:
    world, guard = guarded()

    async def story(world: World) -> None:
        guard.create = lambda _: QUOTA
        await world.make_class()
        await world.make_set(min_available_replicas=1)
        await world.until(lambda: world.status().refused_writes)
        await world.sleep(30)
        guard.create = lambda _: None
        world.wall.jump(step)
        await world.until(lambda: world.available(1), seconds=refusals.BACKOFF.cap.total_seconds())

    world.run(story)
