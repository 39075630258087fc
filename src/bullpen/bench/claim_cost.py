"""What claims cost a lease while there are none: two services take leases in turns.

The reference is the same service without the controller of claims and without what tells it of
changes (``without_claims``).
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from bullpen.bench.lab import Caller, Lab, connected, export, populate, service
from bullpen.bench.measure import Goal, Result, compare, percentile
from bullpen.bench.processes import processor_seconds, served

WITHOUT = (sys.executable, "-m", "bullpen.bench.without_claims")

WARM_UP = 20

UNCHANGED = Goal(1.05, at_least=False)
"""Of two equal services one is up to so much slower by chance."""


async def run(*, rounds: int, exporters: int, leases: int) -> tuple[Result, ...]:
    """The latency of a lease, and the service's processor time for it, in both services."""
    async with _sides(exporters) as (ours, reference):
        for side in (ours, reference):
            await side.warm_up()
        for number in range(rounds):
            for side in (ours, reference):
                side.begin_round()
            for lease in range(leases):
                # Whichever is first in a pair may find a warmer machine.
                swapped = (number + lease) % 2
                for side in (reference, ours) if swapped else (ours, reference):
                    await side.lease()
            for side in (ours, reference):
                side.end_round()
    return (
        compare(
            "warm lease p50, against a lab without claims",
            ours.p50,
            reference.p50,
            unit="ms",
            goal=UNCHANGED,
        ),
        compare(
            "processor time of a lease, against a lab without claims",
            ours.processor,
            reference.processor,
            unit="ms",
            goal=UNCHANGED,
        ),
    )


@contextlib.asynccontextmanager
async def _sides(exporters: int) -> AsyncIterator[tuple[_Side, _Side]]:
    async with contextlib.AsyncExitStack() as stack:
        sides = []
        for program in ((), WITHOUT):
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            lab = stack.enter_context(service(directory, program=program))
            client, tokens = await populate(lab, exporters)
            stack.enter_context(served(export, lab, tokens))
            sides.append(_Side(lab, await stack.enter_async_context(connected(lab, client))))
        yield sides[0], sides[1]


@dataclass(eq=False)
class _Side:
    """One of the two services, with its figures of each round in milliseconds."""

    lab: Lab
    caller: Caller
    p50: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    _samples: list[float] = field(default_factory=list)
    _used: float = 0.0

    async def warm_up(self) -> None:
        for _ in range(WARM_UP):
            await self.lease()

    def begin_round(self) -> None:
        self._samples.clear()
        self._used = processor_seconds(self.lab.pid)

    async def lease(self) -> None:
        started = time.perf_counter()
        lease = await self.caller.lease("bench=yes")
        self._samples.append(time.perf_counter() - started)
        await self.caller.release(lease)

    def end_round(self) -> None:
        used = processor_seconds(self.lab.pid) - self._used
        self.p50.append(percentile(self._samples, 0.5) * 1e3)
        self.processor.append(used / len(self._samples) * 1e3)
