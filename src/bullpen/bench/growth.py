"""The cost of one lease, by the size of the lab and by the number of waiting leases.

The lease controller, its views and the service in front of it are the real ones, the
objects are in memory and the exporters only count as connected, so that the figures are
processor time and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import partial
from itertools import pairwise

from bullpen.api.client import Client
from bullpen.api.exporter import Exporter
from bullpen.api.lease import Lease, LeaseSpec
from bullpen.api.meta import LabelSelector, LocalObjectReference, ObjectMeta
from bullpen.app.lab import BACKOFF
from bullpen.bench.measure import Goal, Result, compare
from bullpen.bench.passes import ready
from bullpen.controllers.exporters.presence_reconciler import Connections
from bullpen.controllers.labs import Labs
from bullpen.controllers.leases.lease_reconciler import LeaseReconciler, watch_namespaces
from bullpen.controllers.views import Views
from bullpen.core.leases.quotas import UNLIMITED
from bullpen.kit.clock import SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.runtime.events import Events
from bullpen.runtime.informer import key_of
from bullpen.runtime.loop import ReconcileLoop
from bullpen.services.lease_requests import LeaseRequest
from bullpen.services.leases import Leases
from bullpen.services.quotas import Gatekeeper
from bullpen.services.signals import Signals
from bullpen.store.memory import MemoryStore

NAMESPACE = "default"
EXPORTERS = (100, 1_000, 10_000)
WAITING = (10, 100, 1_000)
EXPORTERS_BESIDE_WAITING = 100
CYCLES = 40
SETTLE_SECONDS_MAX = 120.0
REQUEST = LeaseRequest(selector="bench=free", duration=timedelta(hours=1), tags={})

GROWTH = Goal(1.3, at_least=False)


async def run(
    *,
    rounds: int,
    exporters: tuple[int, ...] = EXPORTERS,
    waiting: tuple[int, ...] = WAITING,
    cycles: int = CYCLES,
) -> tuple[Result, ...]:
    """How much more a lease costs in a lab, or a queue, ten times as long."""
    by_size = [await _costs(size, 0, rounds, cycles) for size in exporters]
    by_queue = [await _costs(EXPORTERS_BESIDE_WAITING, count, rounds, cycles) for count in waiting]
    return (
        *_growth("cost per lease, {:,} exporters against {:,}", exporters, by_size),
        *_growth("cost per lease, {:,} waiting against {:,}", waiting, by_queue),
    )


def _growth(name: str, sizes: tuple[int, ...], costs: list[list[float]]) -> list[Result]:
    return [
        compare(name.format(large, small), costs[place + 1], costs[place], unit="ms", goal=GROWTH)
        for place, (small, large) in enumerate(pairwise(sizes))
    ]


async def _costs(exporters: int, waiting: int, rounds: int, cycles: int) -> list[float]:
    async with Lab.of(exporters, waiting) as lab:
        await lab.cycles(cycles)
        return [await lab.cycles(cycles) * 1e3 for _ in range(rounds)]


class Lab:
    """A settled lab in which leases are taken and released one after the other."""

    def __init__(self, leases: Leases, client: Client, views: Views) -> None:
        self._leases = leases
        self._client = client
        self._views = views
        self._news = asyncio.Event()
        views.leases.listen(lambda old, new: self._news.set())

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, exporters: int, waiting: int) -> AsyncIterator[Lab]:
        clock, ids = SystemClock(), RandomIds(random.Random(1))
        registry = Registry(MemoryStore(), clock=clock, ids=ids)
        await registry.ensure_namespaces((NAMESPACE,))
        objects = RegistryObjects(registry, manager="bench")
        connections = Connections(started=clock.now())
        await _fill(objects, connections, exporters, clock)
        client = await objects.create(
            Client(metadata=ObjectMeta(name="bench", namespace=NAMESPACE))
        )
        for number in range(waiting):
            await objects.create(_hopeful(number))
        retry = partial(BACKOFF.delay, chance=random.Random(1))
        views = Views.of(objects, retry=retry)
        events = Events(objects, clock=clock, ids=ids, component="bench")
        labs = Labs(objects, views, connected=connections.connected, retention=timedelta(hours=24))
        reconciler = LeaseReconciler(
            objects, views, labs, clock=clock, events=events, supplies=lambda namespace: ()
        )
        loop: ReconcileLoop[str] = ReconcileLoop(reconciler, clock=clock, retry=retry)
        watch_namespaces(views, labs, loop.add)
        monotonic = asyncio.get_running_loop().time
        gatekeeper = Gatekeeper(labs, UNLIMITED, monotonic=monotonic)
        leases = Leases(
            objects, views, gatekeeper=gatekeeper, signals=Signals(), clock=clock, ids=ids
        )
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(part.run()) for part in (views, events)]
            await views.synced()
            running.append(tasks.create_task(loop.run()))
            lab = cls(leases, client, views)
            await lab.until(lambda: lab.has_told(waiting))
            yield lab
            for task in running:
                task.cancel()

    async def cycles(self, count: int) -> float:
        """Processor seconds of one lease, from its request to its end."""
        began = time.process_time()
        for _ in range(count):
            lease = await self._leases.create(self._client, REQUEST)
            assert lease.status.exporter_ref is not None, lease.status.conditions
            await self._leases.release(self._client, lease.metadata.name)
            await self.until(partial(self._is_over, lease))
        return (time.process_time() - began) / count

    def _is_over(self, lease: Lease) -> bool:
        found = self._views.leases.get(*key_of(lease))
        return found is None or found.status.ended

    def has_told(self, count: int) -> bool:
        """Whether this many leases have a status that says they wait."""
        return sum(bool(lease.status.conditions) for lease in self._views.leases.all()) >= count

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(SETTLE_SECONDS_MAX):
            while not holds():
                self._news.clear()
                await self._news.wait()


async def _fill(
    objects: RegistryObjects, connections: Connections, count: int, clock: SystemClock
) -> None:
    """Exporters that are ready and connected; one is leased permanently, for others to wait for."""
    for number in range(count):
        labels = {"bench": "busy" if number == 0 else "free", "number": str(number)}
        meta = ObjectMeta(name=f"e{number}", namespace=NAMESPACE, labels=labels)
        made = await objects.create(Exporter(metadata=meta))
        await objects.update_status(ready(made, clock.now()))
        connections.opened(key_of(made))


def _hopeful(number: int) -> Lease:
    return Lease(
        metadata=ObjectMeta(name=f"waiting-{number:06}", namespace=NAMESPACE),
        spec=LeaseSpec(
            client_ref=LocalObjectReference(name="bench"),
            selector=LabelSelector(match_labels={"bench": "busy"}),
            duration=timedelta(hours=24),
        ),
    )
