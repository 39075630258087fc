"""Many runs in one process."""

from __future__ import annotations

import gc

from bullpen.sim.campaign import outcomes
from bullpen.sim.plan import Home, Size


def test_a_run_leaves_nothing_behind() -> None:
    """Else a soak of hours would take all the memory there is."""
    for outcome in outcomes(range(1, 4), Home.EMBEDDED, size=Size.TINY):
        assert outcome.ok
        assert gc.collect() < 100
