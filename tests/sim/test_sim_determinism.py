"""One seed is one run, on any machine and with any hash seed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bullpen.sim.plan import Home, plan

SCRIPT = """
import sys
from bullpen.sim.plan import Home, Size, plan
from bullpen.sim.run import run
print([run(plan(seed, Home(sys.argv[1]), Size.SMALL)).digest for seed in range(3, 9)])
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("home", list(Home))
def test_two_hash_seeds_give_the_same_trace(home: Home) -> None:
    said = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT, home],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "4711")
    ]
    assert said[0] == said[1]
    assert said[0].strip()


def test_a_seed_is_one_plan() -> None:
    assert plan(5, Home.EMBEDDED) == plan(5, Home.EMBEDDED)
    assert plan(5, Home.EMBEDDED) != plan(6, Home.EMBEDDED)
