"""Leases over gRPC, as ``jmp`` takes them, against an empty call and one durable commit."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from bullpen.bench import claim_cost
from bullpen.bench.lab import Caller, Lab, connected, export, populate, service
from bullpen.bench.measure import Goal, Result, compare, percentile
from bullpen.bench.processes import served
from bullpen.store.base import ABSENT
from bullpen.store.sqlite import SqliteStore

EXPORTERS = 300
WARM = 300
"""Samples a round: the p99 is the third largest and not the largest."""

HAND_OVERS = 50
SUSTAINED = 200
SUSTAINED_PER_SECOND = 40
HELD_SECONDS = 0.1

WARM_P50, WARM_P99 = Goal(3, at_least=False), Goal(10, at_least=False)
BURST = Goal(2, at_least=False)
HAND_OVER_P99 = Goal(3, at_least=False)


async def run(*, rounds: int) -> tuple[Result, ...]:
    """One at a time, at a steady rate, all at once, and from one lease to the next.

    Then against a lab without claims.
    """
    return (
        *await _against_the_minimum(rounds),
        *await claim_cost.run(rounds=rounds, exporters=EXPORTERS, leases=WARM),
    )


async def _against_the_minimum(rounds: int) -> tuple[Result, ...]:
    with (
        tempfile.TemporaryDirectory() as directory,
        service(Path(directory)) as lab,
    ):
        client, tokens = await populate(lab, EXPORTERS)
        with served(export, lab, tokens):
            async with connected(lab, client) as caller:
                reference = await Reference.open(Path(directory) / "reference.db", lab)
                try:
                    return await _measured(caller, reference, rounds)
                finally:
                    await reference.close()


async def _measured(caller: Caller, reference: Reference, rounds: int) -> tuple[Result, ...]:
    await _warm(caller, 10)
    warm: list[list[float]] = []
    bare: list[list[float]] = []
    steady: list[list[float]] = []
    bursts: list[float] = []
    handed: list[list[float]] = []
    for _ in range(rounds):
        bare.append([await _timed(reference.once) for _ in range(WARM)])
        warm.append(await _warm(caller, WARM))
        steady.append(await _sustained(caller))
        bursts.append(await _burst(caller))
        handed.append(await _hand_overs(caller))
    p50 = [percentile(samples, 0.5) * 1e3 for samples in bare]
    p99 = [percentile(samples, 0.99) * 1e3 for samples in bare]
    return (
        _latency("warm lease p50", warm, 0.5, p50, WARM_P50),
        _latency("warm lease p99", warm, 0.99, p50, WARM_P99, referenceP99=median(p99)),
        _latency(f"{SUSTAINED_PER_SECOND} leases/s p50", steady, 0.5, p50, WARM_P50),
        _latency(f"{SUSTAINED_PER_SECOND} leases/s p99", steady, 0.99, p50, WARM_P99),
        compare(
            f"{EXPORTERS} leases at once",
            [seconds * 1e3 for seconds in bursts],
            [EXPORTERS * each for each in p50],
            unit="ms",
            goal=BURST,
        ),
        _latency(
            "hand-over p99",
            handed,
            0.99,
            [percentile(samples, 0.5) * 1e3 for samples in warm],
            HAND_OVER_P99,
        ),
    )


def _latency(
    name: str,
    rounds: list[list[float]],
    share: float,
    reference: list[float],
    goal: Goal,
    **details: float,
) -> Result:
    ours = [percentile(samples, share) * 1e3 for samples in rounds]
    return compare(name, ours, reference, unit="ms", goal=goal, details=details)


async def _warm(caller: Caller, count: int) -> list[float]:
    samples = []
    for _ in range(count):
        started = time.perf_counter()
        lease = await caller.lease("bench=yes")
        samples.append(time.perf_counter() - started)
        await caller.release(lease)
    return samples


async def _sustained(caller: Caller) -> list[float]:
    """Leases at a steady rate that do not wait for each other."""
    samples: list[float] = []

    async def one() -> None:
        started = time.perf_counter()
        lease = await caller.lease("bench=yes")
        samples.append(time.perf_counter() - started)
        await asyncio.sleep(HELD_SECONDS)
        await caller.release(lease)

    async with asyncio.TaskGroup() as tasks:
        begun = time.perf_counter()
        for number in range(SUSTAINED):
            due = begun + number / SUSTAINED_PER_SECOND
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.create_task(one())
    return samples


async def _burst(caller: Caller) -> float:
    started = time.perf_counter()
    leases = await asyncio.gather(*(caller.lease("bench=yes") for _ in range(EXPORTERS)))
    taken = time.perf_counter() - started
    assert len({lease.exporter for lease in leases}) == EXPORTERS, "an exporter was given twice"
    await asyncio.gather(*(caller.release(lease) for lease in leases))
    return taken


async def _hand_overs(caller: Caller) -> list[float]:
    """Time from the release of a lease until the waiting lease is ready."""
    samples = []
    held = await caller.lease("bench-0=yes")
    for _ in range(HAND_OVERS):
        waiting = asyncio.ensure_future(caller.lease("bench-0=yes"))
        await asyncio.sleep(0.02)
        started = time.perf_counter()
        await caller.release(held)
        held = await waiting
        samples.append(time.perf_counter() - started)
    await caller.release(held)
    return samples


async def _timed(act: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await act()
    return time.perf_counter() - started


class Reference:
    """One empty gRPC call and one durable commit: the minimum cost of a lease."""

    def __init__(self, store: SqliteStore, channel: Any) -> None:
        self._store = store
        self._channel = channel
        self._health = health_pb2_grpc.HealthStub(channel)
        self._revision = ABSENT

    @classmethod
    async def open(cls, path: Path, lab: Lab) -> Reference:
        return cls(await SqliteStore.open(path), lab.channel())

    async def once(self) -> None:
        await self._health.Check(health_pb2.HealthCheckRequest())
        entry = await self._store.put("a/b", lambda _: bytes(2200), expect=self._revision)
        self._revision = entry.revision

    async def close(self) -> None:
        await self._channel.close()
        await self._store.close()
