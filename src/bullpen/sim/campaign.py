"""Runs many seeds, on all available processors."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bullpen.sim.plan import Home, Size, plan
from bullpen.sim.run import Outcome, run

GC_THRESHOLDS = (200_000, 20, 100)
"""A run creates little garbage in cycles; it is collected after the run."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of the runs so far."""

    runs: int = 0
    leases: int = 0
    commits: int = 0
    seconds: float = 0.0
    """Virtual time."""

    def plus(self, outcome: Outcome) -> Summary:
        return Summary(
            self.runs + 1,
            self.leases + outcome.leases,
            self.commits + outcome.commits,
            self.seconds + outcome.seconds,
        )


def outcomes(
    seeds: Iterable[int], home: Home, *, size: Size = Size.USUAL, jobs: int = 1
) -> Iterator[Outcome]:
    """The outcome of each seed, in any order."""
    work = ((seed, home, size) for seed in seeds)
    if jobs == 1:
        _prepare()
        yield from map(_run, work)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=_prepare) as pool:
        yield from pool.imap_unordered(_run, work)


def _prepare() -> None:
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _run(work: tuple[int, Home, Size]) -> Outcome:
    outcome = run(plan(*work))
    gc.collect()
    return outcome
