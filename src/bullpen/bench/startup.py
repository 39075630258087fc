"""Startup times: the command, the service, and the service again after ``kill -9``.

A restart counts from the kill until every exporter is connected again and a client has got
a lease, so it includes the exporters' own retry intervals. Ended leases are copies of a real
one, written to the file while the service is stopped.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from bullpen.api.kinds.lease import Lease
from bullpen.api.resources import RESOURCES
from bullpen.bench.lab import Caller, connected, export, populate, service
from bullpen.bench.measure import Goal, Result, compare, interleaved
from bullpen.bench.processes import Served, installed, resident, seconds, served
from bullpen.datadir import backups
from bullpen.datadir.directory import Layout
from bullpen.registry.lists import is_cold
from bullpen.store.base import ABSENT

EXPORTERS = 1_000
BACK_SECONDS_MAX = 120.0
STARTS = 5
BASE_PORT = 21_400
ENDED = 20_000
LIKE_EMPTY = Goal(2.0, at_least=False)
WITHIN = Goal(1.0, at_least=False)
MEMORY_BYTES_MAX, DISK_BYTES_MAX = 1_000, 2_000
"""The most that one ended lease may take."""

WRITTEN_AT_ONCE = 500


@dataclass(slots=True)
class Restarts:
    """Measurements of several restarts of one lab."""

    seconds: list[float] = field(default_factory=list)
    """Until every exporter is connected and a client has a lease."""

    answers: list[float] = field(default_factory=list)
    """Until the service answers."""

    memory: list[int] = field(default_factory=list)
    """Resident bytes of the service after a restart."""

    disk: int = 0
    """Bytes of the database and its log."""


async def run(*, rounds: int, exporters: int = EXPORTERS, ended: int = ENDED) -> tuple[Result, ...]:
    """The command, a first start, and restarts of an empty, a large and a used lab."""
    command = await _command(rounds)
    # One exporter writes little, so the history of changes takes the same in both.
    empty, kept = await _restarts(rounds, 1, (0, ended))
    large, used = await _restarts(rounds, exporters, (0, ended))
    return (
        command,
        compare(
            f"restart with {exporters:,} exporters",
            large.seconds,
            empty.seconds,
            unit="s",
            goal=None,
            details={"answers": min(large.answers)},
        ),
        compare(
            f"restart with {exporters:,} exporters and {ended:,} ended leases",
            used.seconds,
            empty.seconds,
            unit="s",
            goal=LIKE_EMPTY,
            details={"answers": min(used.answers), "without them": min(large.seconds)},
        ),
        _per_lease("memory", min(kept.memory) - min(empty.memory), ended, MEMORY_BYTES_MAX),
        _per_lease("disk", kept.disk - empty.disk, ended, DISK_BYTES_MAX),
    )


def _per_lease(what: str, taken: int, ended: int, most: int) -> Result:
    return compare(f"{what} of an ended lease", [taken / ended], [most], unit="B", goal=WITHIN)


async def _command(rounds: int) -> Result:
    """``bullpen --version`` against the interpreter alone."""

    async def ours() -> float:
        return seconds(installed("bullpen"), "--version")

    async def bare() -> float:
        return seconds(sys.executable, "-c", "pass")

    await ours()
    mine, theirs = await interleaved(rounds * STARTS, ours, bare)
    return compare("bullpen --version", mine, theirs, unit="s", goal=None)


async def _restarts(
    rounds: int, exporters: int, ended_leases: tuple[int, ...]
) -> tuple[Restarts, ...]:
    """Restarts of one lab, with as many ended leases added before each series."""
    with (
        tempfile.TemporaryDirectory() as name,
        service(Path(name), BASE_PORT) as lab,
    ):
        client, tokens = await populate(lab, exporters)
        with served(export, lab, tokens) as crowd:
            async with connected(lab, client) as caller:
                await _lease(caller)
            await asyncio.sleep(1)  # until the ended lease is labelled
            lab.kill()
            await asyncio.sleep(1)  # until the exporters have noticed
            return tuple(
                [await _series(rounds, Path(name), client, crowd, ended) for ended in ended_leases]
            )


async def _series(rounds: int, directory: Path, client: str, crowd: Served, ended: int) -> Restarts:
    found = Restarts()
    layout = Layout(directory / "lab")
    await _add_ended(layout, ended)
    found.disk = layout.database.stat().st_size
    for _ in range(rounds):
        await _restart(directory, client, crowd, found)
    return found


async def _restart(directory: Path, client: str, crowd: Served, found: Restarts) -> None:
    """Start a killed service until all exporters are connected, and kill it again."""
    began = time.perf_counter()
    with service(directory, BASE_PORT) as lab:
        found.answers.append(time.perf_counter() - began)
        await crowd.hear(BACK_SECONDS_MAX)
        async with connected(lab, client) as caller:
            await _lease(caller)
        found.seconds.append(time.perf_counter() - began)
        found.memory.append(resident(lab.pid))
        lab.kill()
        await asyncio.sleep(1)  # until the exporters have noticed


async def _add_ended(layout: Layout, count: int) -> None:
    """Write ``count`` copies of an ended lease into the database of a stopped service."""
    store = await backups.open_store(layout)
    try:
        leases = store.scan(RESOURCES.of(Lease).prefix).entries
        model = next(lease for lease in leases if is_cold(lease.key, lease.value))
        before = msgspec.json.decode(model.value)["metadata"]
        chance = random.Random(7)
        for first in range(0, count, WRITTEN_AT_ONCE):
            writes = []
            for _ in range(first, min(first + WRITTEN_AT_ONCE, count)):
                name, uid = (str(uuid.UUID(int=chance.getrandbits(128))) for _ in range(2))
                value = model.value.replace(before["name"].encode(), name.encode())
                value = value.replace(before["uid"].encode(), uid.encode())
                key = model.key.removesuffix(before["name"]) + name
                writes.append(store.put(key, partial(_unstamped, value), expect=ABSENT))
            await asyncio.gather(*writes)
    finally:
        await store.close()


def _unstamped(value: bytes, revision: int) -> bytes:
    return value


async def _lease(caller: Caller) -> None:
    await caller.release(await caller.lease("bench=yes"))
