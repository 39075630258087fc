"""Controllers as values, the triggers between them, and views looked up by kind."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.core import Namespace
from bullpen.api.kinds.lease import Lease
from bullpen.api.meta import ObjectMeta
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.runtime.controller import Controller, Trigger, every_change
from bullpen.runtime.faults import Faults
from bullpen.runtime.informer import Informers, Key
from bullpen.runtime.loop import Lanes, Outcome
from bullpen.store.journaled import MemoryStore

SECONDS_MAX = 30.0


class Recording:
    """A reconciler that records its passes."""

    name = "recording"

    def __init__(self) -> None:
        self.passes: asyncio.Queue[object] = asyncio.Queue()
        self.broken = False

    async def reconcile(self, key: object) -> Outcome:
        self.passes.put_nowait(key)
        if self.broken:
            raise ValueError("broken")
        return Outcome()


def retry(failures: int) -> timedelta:
    return timedelta(seconds=60)


async def made_objects() -> RegistryObjects:
    registry = Registry(MemoryStore(), clock=SystemClock(), ids=RandomIds(random.Random(1)))
    await registry.ensure_namespaces(("default",))
    return RegistryObjects(registry, manager="test")


async def test_a_controller_runs_a_pass_for_every_change_and_every_trigger() -> None:
    objects = await made_objects()
    views, reconciler = Informers(objects, retry=retry), Recording()
    asked: Trigger[tuple[str, str]] = Trigger()
    controller = Controller(
        reconciler=reconciler, watches=(every_change(views[Client]), asked.listen)
    )
    loop = controller.loop(clock=SystemClock(), retry=retry, faults=views.faults)
    async with asyncio.timeout(SECONDS_MAX), asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(part.run()) for part in (views, loop)]
        await views.synced()
        await objects.create(Client(metadata=ObjectMeta(name="alice", namespace="default")))
        assert await reconciler.passes.get() == ("default", "alice")
        asked(("default", "bob"))
        assert await reconciler.passes.get() == ("default", "bob")
        for task in running:
            task.cancel()


async def test_an_unexpected_failure_is_reported_on_the_subject_of_the_pass() -> None:
    objects = await made_objects()
    views, reconciler = Informers(objects, retry=retry), Recording()
    reconciler.broken = True
    namespaces = views[Namespace]
    controller: Controller[Key] = Controller(
        reconciler=reconciler,
        watches=(every_change(namespaces),),
        subject=lambda key: namespaces.get(*key),
    )
    loop = controller.loop(clock=SystemClock(), retry=retry, faults=views.faults)
    reported = asyncio.Event()
    views.faults.listen(lambda _: reported.set())
    async with asyncio.timeout(SECONDS_MAX), asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(part.run()) for part in (views, loop)]
        await reported.wait()
        for task in running:
            task.cancel()
    [found] = views.faults.all()
    assert (found.kind, found.name) == (Namespace, "default")


async def test_a_view_is_made_once_and_not_after_the_start() -> None:
    views = Informers(await made_objects(), retry=retry)
    assert views[Lease] is views[Lease]
    assert views.kinds == {Lease}
    async with asyncio.timeout(SECONDS_MAX), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(views.run())
        await views.synced()
        assert views[Lease].live
        with pytest.raises(AssertionError, match="Client"):
            views[Client]
        running.cancel()


async def test_a_lane_that_is_full_delays_no_other_and_none_of_its_keys_is_lost() -> None:
    class Blocking(Recording):
        def __init__(self) -> None:
            super().__init__()
            self.free = asyncio.Event()

        async def reconcile(self, key: object) -> Outcome:
            self.passes.put_nowait(key)
            if str(key).startswith("slow"):
                await self.free.wait()
            return Outcome()

    reconciler, asked = Blocking(), Trigger[str]()
    lanes: Lanes[str] = Lanes(of=lambda key: key.partition("-")[0], passes_max=2)
    controller: Controller[str] = Controller(
        reconciler=reconciler, watches=(asked.listen,), workers=3, lanes=lanes
    )
    loop = controller.loop(clock=SystemClock(), retry=retry, faults=Faults())
    for key in ("slow-1", "slow-2", "slow-3", "slow-4", "slow-3", "quick-1", "quick-2"):
        asked(key)
    async with asyncio.timeout(SECONDS_MAX), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(loop.run())
        begun = [await reconciler.passes.get() for _ in range(4)]
        assert begun == ["slow-1", "slow-2", "quick-1", "quick-2"]
        reconciler.free.set()
        assert {await reconciler.passes.get() for _ in range(2)} == {"slow-3", "slow-4"}
        running.cancel()
