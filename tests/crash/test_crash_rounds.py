"""A short run of the crash harness; ``make crash`` is the long one."""

from __future__ import annotations

from pathlib import Path

import harness
import pytest
from crash_faults import DISK_FAULTS, FAULTS

ROUNDS = len(FAULTS) + len(DISK_FAULTS)
"""Each fault once."""

SEED = 11


@pytest.mark.slow
@pytest.mark.real
def test_a_lab_that_is_harmed_loses_nothing_and_comes_back(tmp_path: Path) -> None:
    for line in harness.run(tmp_path, rounds=ROUNDS, seed=SEED, pause_seconds=3.0):
        print(line)
