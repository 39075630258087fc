"""Durable writes through the store, against bare SQLite with the same settings.

The reference does the least that could be called durable: a plain loop in one thread that
appends as many rows as there are writers and commits. It compares nothing, keeps nothing in
memory, deletes nothing, wakes no task and answers no caller. The ratio to its speed is what
the store leaves to the layers above it.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import apsw

from bullpen.bench.measure import Goal, Result, compare, interleaved, percentile
from bullpen.store import file
from bullpen.store.base import ABSENT, Store
from bullpen.store.history import Limits
from bullpen.store.sqlite import CHECKPOINT_PAGES, SqliteStore

VALUE_BYTES = 2200
"""The size of a typical custom resource."""

GOALS = {1: Goal(0.3), 16: Goal(0.3), 64: Goal(0.4)}
"""By the number of writers. A single writer pays for two hops between threads."""

# Soon reached, so that the measurement includes deleting history.
_LIMITS = Limits(history_count_max=2000)


@dataclass(frozen=True, slots=True)
class Sample:
    writes_per_second: float
    latencies: tuple[float, ...]


async def run(*, rounds: int = 3, seconds: float = 1.0) -> tuple[Result, ...]:
    """Compare with 1, 16 and 64 writers."""
    return tuple([await _compare(writers, rounds, seconds) for writers in GOALS])


async def _compare(writers: int, rounds: int, seconds: float) -> Result:
    ours, bare = await interleaved(
        rounds, partial(_measure_store, writers, seconds), partial(measure_bare, writers, seconds)
    )
    return compare(
        f"store put, {writers} writers" if writers > 1 else "store put, 1 writer",
        [sample.writes_per_second for sample in ours],
        [sample.writes_per_second for sample in bare],
        unit="writes/s",
        goal=GOALS[writers],
        details={
            "p50_ms": _latency(ours, 0.50),
            "p99_ms": _latency(ours, 0.99),
            "bare_p50_ms": _latency(bare, 0.50),
            "bare_p99_ms": _latency(bare, 0.99),
        },
    )


async def _measure_store(writers: int, seconds: float) -> Sample:
    with tempfile.TemporaryDirectory() as directory:
        store = await SqliteStore.open(Path(directory) / "store.db", limits=_LIMITS)
        latencies: list[float] = []
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(writers):
                group.create_task(_write(store, f"bench/{number}", begin + seconds, latencies))
        elapsed = time.perf_counter() - begin
        await store.close()
    return Sample(len(latencies) / elapsed, tuple(latencies))


async def _write(store: Store, key: str, end: float, latencies: list[float]) -> None:
    """Write until the end time, at least once."""
    revision, value = ABSENT, bytes(VALUE_BYTES)
    begin = time.perf_counter()
    while revision == ABSENT or begin < end:
        entry = await store.put(key, lambda _: value, expect=revision)
        revision = entry.revision
        done = time.perf_counter()
        latencies.append(done - begin)
        begin = done


async def measure_bare(writers: int, seconds: float) -> Sample:
    return await asyncio.to_thread(_append, writers, seconds)


def _append(writers: int, seconds: float) -> Sample:
    with (
        tempfile.TemporaryDirectory() as directory,
        contextlib.closing(_bare(Path(directory) / "bare.db")) as connection,
    ):
        latencies: list[float] = []
        begin = start = time.perf_counter()
        revision = 0
        while not revision or start < begin + seconds:
            _commit(connection, revision, writers)
            revision += writers
            done = time.perf_counter()
            latencies += [done - start] * writers
            start = done
        return Sample(revision / (start - begin), tuple(latencies))


def _bare(path: Path) -> apsw.Connection:
    connection = file.open_or_create(path, None)
    connection.set_wal_hook(None)
    connection.pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
    return connection


def _commit(connection: apsw.Connection, revision: int, count: int) -> None:
    value = bytes(VALUE_BYTES)
    rows = ((revision + number + 1, f"bench/{number}", 1, value) for number in range(count))
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?)", rows)
    connection.execute("COMMIT")


def _latency(samples: list[Sample], share: float) -> float:
    return 1000 * median(percentile(sample.latencies, share) for sample in samples)
