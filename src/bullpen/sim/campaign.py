"""Runs many seeds, on all available processors, and shortens runs that fail.

Each step of a run has its own seed, so omitting one changes no other. A run fails in the
same way if it breaks the same promise.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace

from bullpen.sim.plan import Home, Plan, Size, Step, Weather, plan
from bullpen.sim.run import Outcome, run

GC_THRESHOLDS = (200_000, 20, 100)
"""A run creates little garbage in cycles; it is collected after the run."""

RUNS_MAX = 200
"""Maximum attempts; after that the shortest failing run so far is the result."""

Run = Callable[[Plan], Outcome]


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


def shrink(failed: Outcome, run: Run) -> Outcome:
    """The shortest run found that breaks the same promise."""
    best, left = failed, RUNS_MAX
    improved = True
    while improved and left:
        improved = False
        for smaller in _smaller(best.plan):
            if not left:
                break
            left -= 1
            outcome = run(smaller)
            if _same(outcome, failed):
                best, improved = outcome, True
                break
    return best


def _same(outcome: Outcome, failed: Outcome) -> bool:
    return not outcome.ok and outcome.violations[0].promise == failed.violations[0].promise


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with fewer parts, the much smaller ones first."""
    for size in _halves(len(plan.steps)):
        for first in range(0, len(plan.steps), size):
            yield _without(plan, plan.steps[first : first + size])
    calm = Weather()
    for item in fields(Weather):
        if getattr(plan.weather, item.name) != getattr(calm, item.name):
            calmer = {item.name: getattr(calm, item.name)}
            yield replace(plan, weather=replace(plan.weather, **calmer))


def _halves(count: int) -> Iterator[int]:
    while count > 1:
        count = (count + 1) // 2
        yield count


def _without(plan: Plan, gone: tuple[Step, ...]) -> Plan:
    return replace(plan, steps=tuple(step for step in plan.steps if step not in gone))
