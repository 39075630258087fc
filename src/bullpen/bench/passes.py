"""The cost of one change in a pool, by the size of the pool: pools without machines.

The controllers are the real ones, the objects are in memory, the backend is the fake, and
everything runs on one core, so that the figures are processor time and nothing else. On a busy
machine even that grows with the size of a process, because others use the same caches: so the
calls of functions are counted too, which is the same on every machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from types import FrameType

from bullpen.api.exporter_template import Template, TemplateMetadata
from bullpen.api.kinds.exporter import Exporter, ExporterSpec
from bullpen.api.kinds.exporterset import ExporterSet, ExporterSetSpec
from bullpen.api.kinds.virtualtargetclass import VirtualTargetClass, VirtualTargetClassSpec
from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.api.meta import LabelSelector, LocalObjectReference, ObjectMeta
from bullpen.app import controllers
from bullpen.app.lab import Lab, LabSettings, Role
from bullpen.app.sources import Sources
from bullpen.bench import lasting_members
from bullpen.bench.measure import Goal, Result, compare
from bullpen.bench.pass_times import PassTimes
from bullpen.bench.ready_exporter import NAMESPACE, POOL, ready
from bullpen.controllers.views import Views
from bullpen.core.targets import profiles
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.provisioners.base import Connection, InstanceSpec
from bullpen.provisioners.fake import NAME, FakeProvisioner
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.store.journaled import MemoryStore

AnyPool = ExporterSet | VirtualTargetPool
KINDS: dict[type[AnyPool], str] = {
    ExporterSet: "cost per change",
    VirtualTargetPool: "cost per change, lasting targets",
}
LABELS = {"board": "bench"}
SIZES = (100, 1_000, 10_000)
CHANGES = 40
SETTLE_SECONDS_MAX = 600.0

GROWTH = Goal(1.3, at_least=False)
NO_SLOWER = Goal(1, at_least=False)


async def run(*, rounds: int, sizes: tuple[int, ...] = SIZES) -> tuple[Result, ...]:
    """How much more a change costs in a pool ten times as large, and a pass of either kind."""
    found, passes = [], {}
    for kind, what in KINDS.items():
        costs = [await _costs(kind, size, rounds) for size in sizes]
        passes[kind] = [each.pass_ms for each in costs]
        for (small, before), (large, after) in pairwise(zip(sizes, costs, strict=True)):
            grown = f"{large:,} members against {small:,}"
            found += [
                compare(f"{what}, {grown}", after.ms, before.ms, unit="ms", goal=GROWTH),
                compare(
                    f"calls per change{what.removeprefix('cost per change')}, {grown}",
                    after.calls,
                    before.calls,
                    unit="calls",
                    goal=GROWTH,
                ),
            ]
    for size, lasting, of_set in zip(
        sizes, passes[VirtualTargetPool], passes[ExporterSet], strict=True
    ):
        name = f"pass over {size:,} lasting targets, against one over as many members of a set"
        found.append(compare(name, lasting, of_set, unit="ms", goal=NO_SLOWER))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Costs:
    """What one change costs, in each round."""

    ms: list[float]
    calls: list[float]
    pass_ms: list[float]
    """Of the pool's own controller, which makes several passes for a change."""


async def _costs(kind: type[AnyPool], size: int, rounds: int) -> Costs:
    async with Pool.of(kind, size) as pool:
        await pool.changes()
        ms, pass_ms = [], []
        for _ in range(rounds):
            pool.passes.clear()
            ms.append(await pool.changes() * 1e3)
            pass_ms.append(pool.passes.mean * 1e3)
        return Costs(ms, [await _calls(pool.changes) / CHANGES for _ in range(rounds)], pass_ms)


async def _calls(work: Callable[[], Awaitable[float]]) -> int:
    """The calls of Python functions in this thread until ``work`` is done."""
    counted = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        await work()
    finally:
        sys.setprofile(None)
    return counted


class Pool:
    """A settled pool in which members are leased and released one after the other."""

    def __init__(
        self, objects: RegistryObjects, views: Views, kind: type[AnyPool], size: int
    ) -> None:
        self._objects = objects
        self._kind = kind
        self._views = views
        self._size = size
        self.passes = PassTimes()
        self._next = 0
        self._news = asyncio.Event()
        views[kind].listen(lambda old, new: self._news.set())

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, kind: type[AnyPool], size: int) -> AsyncIterator[Pool]:
        sources = Sources(
            clock=SystemClock(), ids=RandomIds(random.Random(1)), chance=random.Random(1)
        )
        registry = Registry(MemoryStore(), clock=sources.clock, ids=sources.ids)
        await registry.ensure_namespaces((NAMESPACE,))
        objects = RegistryObjects(registry, manager="bench")
        provisioner = FakeProvisioner(sources.chance)
        fill = lasting_members.fill if kind is VirtualTargetPool else _fill
        await fill(objects, provisioner, size, sources.clock.now())
        settings = LabSettings(endpoint="", ca_pem="")
        lab = Lab(objects, settings, sources, role=Role.POOLS, provisioners=(provisioner,))
        found = cls(objects, lab.views, kind, size)
        measured = (controllers.exporter_sets, controllers.virtual_target_pools)
        parts = (found.passes.of(p) if p in measured else p for p in controllers.POOLS)
        async with lab.running(tuple(parts)):
            await found.until(leased=0)
            yield found

    async def changes(self) -> float:
        """Processor seconds of one change, from its write to the pool's new counts."""
        began = time.process_time()
        for _ in range(CHANGES // 2):
            name = f"{POOL}-{self._next % self._size}"
            self._next += 1
            for holder, leased in ((LocalObjectReference(name="bench"), 1), (None, 0)):
                await self._lease(name, holder)
                await self.until(leased=leased)
        return (time.process_time() - began) / CHANGES

    async def _lease(self, name: str, holder: LocalObjectReference | None) -> None:
        found = self._views.exporters.get(NAMESPACE, name)
        assert found is not None
        status = replace(found.status, lease_ref=holder)
        await self._objects.update_status(replace(found, status=status))

    async def until(self, *, leased: int) -> None:
        async with asyncio.timeout(SETTLE_SECONDS_MAX):
            while not self._is_settled(leased):
                self._news.clear()
                await self._news.wait()

    def _is_settled(self, leased: int) -> bool:
        found = self._views[self._kind].get(NAMESPACE, POOL)
        assert found is not None
        status = found.status
        return status.ready_replicas == self._size and status.leased_replicas == leased


async def _fill(
    objects: RegistryObjects, provisioner: FakeProvisioner, size: int, now: datetime
) -> None:
    """A set with ready members, and their instances."""
    cls = await objects.create(
        VirtualTargetClass(
            metadata=ObjectMeta(name=POOL, namespace=NAMESPACE),
            spec=VirtualTargetClassSpec(provisioner=NAME),
        )
    )
    owner = await objects.create(
        ExporterSet(
            metadata=ObjectMeta(name=POOL, namespace=NAMESPACE),
            spec=ExporterSetSpec(
                virtual_target_class_name=POOL,
                min_replicas=size,
                max_replicas=0,
                selector=LabelSelector(match_labels=LABELS),
                template=Template(metadata=TemplateMetadata(labels=LABELS)),
            ),
        )
    )
    made = profiles.profile(owner, cls)
    for number in range(size):
        meta = profiles.member_metadata(owner, f"{POOL}-{number}", made)
        exporter = await objects.create(Exporter(metadata=meta, spec=ExporterSpec()))
        await objects.update_status(ready(exporter, now))
        key = (NAMESPACE, exporter.metadata.name)
        spec = InstanceSpec(
            key=key,
            owner_uid=exporter.metadata.uid,
            profile=made,
            connection=Connection(endpoint="", token="", ca_pem=""),
        )
        await provisioner.ensure(spec)
