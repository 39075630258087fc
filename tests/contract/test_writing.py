"""Changing an object that others change too, while the disk takes its time."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest

from bullpen.api.kinds.exporter import Exporter, ExporterSpec, ExporterStatusValue
from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import Objects
from bullpen.controllers.object_edit import ATTEMPTS_MAX, SLOW_SECONDS_MAX, change_status
from bullpen.errors import NotFound, Unavailable
from bullpen.kit.clock import Backoff, VirtualClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.runtime.informer import Informer
from bullpen.sim import virtual_time
from bullpen.sim.disk import Disk

S = ExporterStatusValue
BACKOFF = Backoff(first=timedelta(milliseconds=20), cap=timedelta(seconds=30))


class World:
    objects: Objects
    view: Informer[Exporter]
    board: Exporter

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.disk = Disk(random.Random(1), lambda _: None, history=1_000)

    def run(self, story: Callable[[World], Awaitable[None]]) -> None:
        virtual_time.run(self.clock, self._run(story))

    async def _run(self, story: Callable[[World], Awaitable[None]]) -> None:
        registry = Registry(self.disk.open(), clock=self.clock, ids=RandomIds(random.Random(2)))
        await registry.ensure_namespaces(["default"])
        self.objects = RegistryObjects(registry, manager="test")
        retry = functools.partial(BACKOFF.delay, chance=random.Random(3))
        self.view = Informer(self.objects, Exporter, retry=retry)
        made = Exporter(metadata=ObjectMeta(name="a", namespace="default"), spec=ExporterSpec())
        self.board = await self.objects.create(made)
        await story(self)

    async def say(self, value: ExporterStatusValue) -> Exporter:
        return await change_status(
            self.objects,
            self.view,
            self.board,
            lambda e: replace(e.status, exporter_status=value),
        )

    def get_stuck(self, seconds: float) -> None:
        self.disk.stuck_until = asyncio.get_running_loop().time() + seconds


@pytest.fixture
def world() -> World:
    return World()


def test_a_report_waits_for_the_write_before_it_however_slow_the_disk_is(world: World) -> None:
    """An exporter says once that it is free; if that is refused nobody gets the board again."""

    async def story(world: World) -> None:
        world.get_stuck(SLOW_SECONDS_MAX - 1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(world.say(S.LEASE_READY))
            await asyncio.sleep(0)
            later = tasks.create_task(world.say(S.AVAILABLE))
        assert later.result().status.exporter_status is S.AVAILABLE
        found = await world.objects.get(Exporter, "default", "a")
        assert found.status.exporter_status is S.AVAILABLE

    world.run(story)


def test_a_disk_that_is_stuck_is_told_in_a_way_that_is_tried_again(world: World) -> None:
    async def story(world: World) -> None:
        world.get_stuck(10 * SLOW_SECONDS_MAX)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(world.say(S.LEASE_READY))
            await asyncio.sleep(0)
            with pytest.raises(Unavailable, match="takes more than 10 s"):
                await world.say(S.AVAILABLE)

    world.run(story)


def test_an_object_that_moves_on_every_time_is_given_up(world: World) -> None:
    async def story(world: World) -> None:
        rival = Rival(world.objects)
        with pytest.raises(Unavailable, match=f"changed {ATTEMPTS_MAX} times"):
            await change_status(
                cast(Objects, rival),
                world.view,
                world.board,
                lambda e: replace(e.status, exporter_status=S.AVAILABLE),
            )
        assert rival.writes == ATTEMPTS_MAX

    world.run(story)


class Rival:
    """Objects where somebody else is always a moment faster."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.get = objects.get
        self.writes = 0

    async def update_status(self, value: Exporter) -> Exporter:
        self.writes += 1
        first = await self.get(Exporter, "default", "a")
        said = replace(first.status, status_message=f"{self.writes}")
        await self._objects.update_status(replace(first, status=said))
        return await self._objects.update_status(value)


def test_an_object_that_is_gone_is_not_found(world: World) -> None:
    async def story(world: World) -> None:
        await world.objects.delete(world.board)
        with pytest.raises(NotFound):
            await world.say(S.AVAILABLE)

    world.run(story)
