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

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease, LeaseSpec
from bullpen.api.meta import LabelSelector, LocalObjectReference, ObjectMeta
from bullpen.app import controllers
from bullpen.app import lab as production
from bullpen.app.config import Config
from bullpen.app.lab import Keys, LabSettings, Role
from bullpen.app.login import outside_tokens
from bullpen.app.services import Services
from bullpen.app.sources import Sources
from bullpen.bench.measure import Goal, Result, compare
from bullpen.bench.ready_exporter import ready
from bullpen.controllers.exporters.presence_reconciler import Connections
from bullpen.controllers.views import Views
from bullpen.core.leases.quotas import UNLIMITED
from bullpen.datadir.keys import fresh_signing_keys, read_signing_keys
from bullpen.identity.tokens import Signer, Tickets
from bullpen.kit.clock import Clock, SystemClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.runtime.informer import key_of
from bullpen.services.lease_requests import LeaseRequest
from bullpen.services.leases import Leases
from bullpen.store.journaled import MemoryStore

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
        sources = Sources(
            clock=SystemClock(), ids=RandomIds(random.Random(1)), chance=random.Random(1)
        )
        registry = Registry(MemoryStore(), clock=sources.clock, ids=sources.ids)
        await registry.ensure_namespaces((NAMESPACE,))
        objects = RegistryObjects(registry, manager="bench")
        client = await objects.create(
            Client(metadata=ObjectMeta(name="bench", namespace=NAMESPACE))
        )
        settings = LabSettings(endpoint="", ca_pem="", quotas=UNLIMITED)
        lab = production.Lab(
            objects, settings, sources, role=Role.LEASES, keys=_keys(sources.clock)
        )
        await _fill(objects, lab.connections, exporters, sources.clock)
        for number in range(waiting):
            await objects.create(_hopeful(number))
        found = cls(Services.of(lab).leases, client, lab.views)
        async with lab.running((controllers.leases,)):
            await found.until(lambda: found.has_told(waiting))
            yield found

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
    objects: RegistryObjects, connections: Connections, count: int, clock: Clock
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


def _keys(clock: Clock) -> Keys:
    return Keys(
        signer=Signer(read_signing_keys(fresh_signing_keys())),
        tickets=Tickets(b"k" * 32),
        outside=outside_tokens(Config(), clock),
    )
