"""Seeds: those that found something once, and many new ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from bullpen.sim.campaign import outcomes
from bullpen.sim.plan import Home, plan
from bullpen.sim.run import run

SEEDS = Path(__file__).parent / "seeds.txt"
MANY = 40
"""Seeds of each home in `make test`; `make soak` runs as many as there is time for."""


def recorded() -> list[tuple[Home, int]]:
    lines = SEEDS.read_text().splitlines()
    found = [line.split(maxsplit=2) for line in lines if line and not line.startswith("#")]
    return [(Home(home), int(seed)) for home, seed, _ in found]


@pytest.mark.slow
@pytest.mark.parametrize(("home", "seed"), recorded(), ids=lambda value: str(value))
def test_a_seed_that_found_a_bug_finds_it_no_more(home: Home, seed: int) -> None:
    outcome = run(plan(seed, home))
    assert outcome.ok, "\n".join(outcome.tail)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("home", list(Home))
def test_many_seeds_break_no_promise(home: Home) -> None:
    for outcome in outcomes(range(1_000, 1_000 + MANY), home, jobs=2):
        tail = "\n".join(outcome.tail)
        assert outcome.ok, f"{tail}\nbullpen sim --seed {outcome.plan.seed} --home {home}"


def test_a_run_without_faults_serves_its_leases() -> None:
    outcome = run(plan(1, Home.EMBEDDED))
    assert outcome.ok, "\n".join(outcome.tail)
    assert outcome.leases
    assert outcome.commits > 100
