"""A failing run becomes a short one that fails in the same way."""

from __future__ import annotations

import pytest

from bullpen.sim.campaign import shrink
from bullpen.sim.plan import (
    ADDED_DISKS,
    ADDED_LASTING,
    FAULTS,
    LASTING_WORK,
    ONLY_LASTING,
    WORK,
    WORKS,
    Act,
    Home,
    Plan,
    Size,
    Weather,
    plan,
)
from bullpen.sim.run import Outcome
from bullpen.sim.truth import Violation


def outcome(plan: Plan, *promises: str) -> Outcome:
    return Outcome(
        plan=plan,
        violations=tuple(Violation(promise, "", 0.0) for promise in promises),
        digest="",
        events=0,
        leases=0,
        commits=0,
        seconds=0.0,
        tail=(),
    )


def test_only_the_steps_that_matter_are_left() -> None:
    whole = next(p for p in (plan(s, Home.EMBEDDED) for s in range(100)) if len(p.steps) > 20)
    needed = {whole.steps[3], whole.steps[17]}

    def run(tried: Plan) -> Outcome:
        return outcome(tried, *(["p"] if needed <= set(tried.steps) else []))

    found = shrink(outcome(whole, "p"), run)
    assert set(found.plan.steps) == needed
    assert found.plan.weather == Weather()


def test_a_run_that_fails_otherwise_is_not_the_same() -> None:
    whole = plan(1, Home.EMBEDDED)
    found = shrink(outcome(whole, "p"), lambda tried: outcome(tried, "q"))
    assert found.plan == whole


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(size, marks=[pytest.mark.slow] if size in (Size.LARGE, Size.DENSE) else [])
        for size in Size
    ],
)
def test_every_act_is_planned_by_some_seed(size: Size) -> None:
    plans = [plan(seed, home, size) for seed in range(200) for home in Home]
    work = {**(LASTING_WORK if size is Size.LASTING else WORK)}
    if size is Size.CLAIMS:
        work[Act.CLAIM] = 1
    if size is Size.EXTREMES:
        work[Act.EXTREME] = 1
    lasting = ONLY_LASTING | ADDED_LASTING | ADDED_DISKS
    expected = {*FAULTS, *work} | lasting if size is Size.LASTING else {*FAULTS, *work} - lasting
    assert {step.act for found in plans for step in found.steps} == expected


def test_every_act_is_a_fault_or_somebodys_work() -> None:
    assert {*FAULTS, *WORKS} == set(Act)
