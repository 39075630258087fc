"""Seeds: those that found something once, and many new ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from bullpen.sim.campaign import outcomes
from bullpen.sim.plan import Home, Size, plan
from bullpen.sim.run import run

SEEDS = Path(__file__).parent / "seeds.txt"
MANY = {
    Size.TINY: 20,
    Size.SMALL: 6,
    Size.USUAL: 2,
    Size.DENSE: 1,
    Size.LASTING: 8,
    Size.CLAIMS: 4,
    Size.EXTREMES: 6,
}
"""Seeds of each home in `make test`; `make soak` runs as many as there is time for.

A large run takes 20 s, and the recorded seeds have large ones of both homes.
"""


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
@pytest.mark.parametrize("size", MANY)
@pytest.mark.parametrize("home", list(Home))
def test_many_seeds_break_no_promise(home: Home, size: Size) -> None:
    for outcome in outcomes(range(1_000, 1_000 + MANY[size]), home, size=size):
        tail = "\n".join(outcome.tail)
        again = f"bullpen sim --seed {outcome.plan.seed} --home {home} --size {size}"
        assert outcome.ok, f"{tail}\n{again}"


def test_every_size_is_run_in_both_homes() -> None:
    ran = {(home, size) for home, size, _ in recorded()}
    ran |= {(home, size) for home in Home for size in MANY}
    assert ran == {(home, size) for home in Home for size in Size}


def test_a_run_without_faults_serves_its_leases() -> None:
    outcome = run(plan(1, Home.EMBEDDED, Size.SMALL))
    assert outcome.ok, "\n".join(outcome.tail)
    assert outcome.leases
    assert outcome.commits > 100
