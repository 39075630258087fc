"""Seeds: those that found something once, and many new ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from bullpen.sim.campaign import outcomes
from bullpen.sim.plan import Home, Size, plan
from bullpen.sim.run import run

SEEDS = Path(__file__).parent / "seeds.txt"
MANY = {
    Size.TINY: 40,
    Size.SMALL: 10,
    Size.USUAL: 2,
    Size.LARGE: 1,
    Size.DENSE: 1,
    Size.LASTING: 12,
    Size.CLAIMS: 6,
}
"""Seeds of each home in `make test`; `make soak` runs as many as there is time for."""


def recorded() -> list[tuple[Home, Size, int]]:
    lines = SEEDS.read_text().splitlines()
    found = [line.split(maxsplit=3) for line in lines if line and not line.startswith("#")]
    return [(Home(home), Size(size), int(seed)) for home, size, seed, _ in found]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("home", "size", "seed"), recorded(), ids=lambda value: str(value))
def test_a_seed_that_found_a_bug_finds_it_no_more(home: Home, size: Size, seed: int) -> None:
    outcome = run(plan(seed, home, size))
    assert outcome.ok, "\n".join(outcome.tail)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("size", list(Size))
@pytest.mark.parametrize("home", list(Home))
def test_many_seeds_break_no_promise(home: Home, size: Size) -> None:
    for outcome in outcomes(range(1_000, 1_000 + MANY[size]), home, size=size, jobs=2):
        tail = "\n".join(outcome.tail)
        again = f"bullpen sim --seed {outcome.plan.seed} --home {home} --size {size}"
        assert outcome.ok, f"{tail}\n{again}"


def test_a_run_without_faults_serves_its_leases() -> None:
    outcome = run(plan(1, Home.EMBEDDED, Size.SMALL))
    assert outcome.ok, "\n".join(outcome.tail)
    assert outcome.leases
    assert outcome.commits > 100
