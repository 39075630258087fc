"""One seed is one run, on any machine, with any hash seed, whenever garbage is collected."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bullpen.sim.plan import Home, plan

SCRIPT = """
import gc, sys
from bullpen.sim.plan import Home, Size, plan
from bullpen.sim.run import run
gc.set_threshold(int(sys.argv[2]))
seeds = (3, 4, 15, 17, 18, 45, 52)
print([run(plan(seed, Home(sys.argv[1]), Size.SMALL)).digest for seed in seeds])
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("home", list(Home))
def test_neither_hashes_nor_garbage_change_a_trace(home: Home) -> None:
    said = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT, home, allocations_until_collected],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed, allocations_until_collected in (("1", "0"), ("4711", "50"))
    ]
    assert said[0] == said[1]
    assert said[0].strip()


def test_a_seed_is_one_plan() -> None:
    assert plan(5, Home.EMBEDDED) == plan(5, Home.EMBEDDED)
    assert plan(5, Home.EMBEDDED) != plan(6, Home.EMBEDDED)
