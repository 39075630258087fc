"""Startup times: the command, the service, and the service again after ``kill -9``.

A restart counts from the kill until every exporter is connected again and a client has got
a lease, so it includes the exporters' own retry intervals.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from bullpen.bench.lab import Caller, connected, export, populate, service
from bullpen.bench.measure import Result, compare, interleaved
from bullpen.bench.processes import Served, installed, seconds, served

EXPORTERS = 1_000
BACK_SECONDS_MAX = 120.0
STARTS = 5
BASE_PORT = 21_400


async def run(*, rounds: int, exporters: int = EXPORTERS) -> tuple[Result, ...]:
    """The command, a first start, and restarts of an empty and of a large lab."""
    command = await _command(rounds)
    empty = await _restarts(rounds, 1)
    large = await _restarts(rounds, exporters)
    return (
        command,
        compare(f"restart with {exporters:,} exporters", large, empty, unit="s", goal=None),
    )


async def _command(rounds: int) -> Result:
    """``bullpen --version`` against the interpreter alone."""

    async def ours() -> float:
        return seconds(installed("bullpen"), "--version")

    async def bare() -> float:
        return seconds(sys.executable, "-c", "pass")

    await ours()
    mine, theirs = await interleaved(rounds * STARTS, ours, bare)
    return compare("bullpen --version", mine, theirs, unit="s", goal=None)


async def _restarts(rounds: int, exporters: int) -> list[float]:
    with (
        tempfile.TemporaryDirectory() as directory,
        service(Path(directory), BASE_PORT) as lab,
    ):
        client, tokens = await populate(lab, exporters)
        with served(export, lab, tokens) as crowd:
            lab.kill()
            return [await _restart(Path(directory), client, crowd) for _ in range(rounds)]


async def _restart(directory: Path, client: str, crowd: Served) -> float:
    """Seconds from starting a killed service until all are connected; kills it again."""
    began = time.perf_counter()
    with service(directory, BASE_PORT) as lab:
        await crowd.hear(BACK_SECONDS_MAX)
        async with connected(lab, client) as caller:
            await _lease(caller)
        taken = time.perf_counter() - began
        lab.kill()
        await asyncio.sleep(1)  # until the exporters have noticed
        return taken


async def _lease(caller: Caller) -> None:
    await caller.release(await caller.lease("bench=yes"))
