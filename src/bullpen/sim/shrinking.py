"""Shortens a failing run: omits steps and faults while it still fails.

Each step has its own seed, so omitting one changes no other. A run fails in the same way if
it breaks the same promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from bullpen.sim.plan import Plan, Step, Weather
from bullpen.sim.run import Outcome

RUNS_MAX = 200
"""Maximum attempts; after that the shortest failing run so far is the result."""

Run = Callable[[Plan], Outcome]


def shrink(failed: Outcome, run: Run) -> Outcome:
    """The shortest run found that breaks the same promise."""
    best, left = failed, RUNS_MAX
    improved = True
    while improved and left:
        improved = False
        for plan in _smaller(best.plan):
            if not left:
                break
            left -= 1
            outcome = run(plan)
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
