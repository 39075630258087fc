"""Many runs in one process."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from bullpen.sim.campaign import outcomes
from bullpen.sim.plan import Home, Size


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    """Leave the collector of the tests as it was."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_a_run_leaves_nothing_behind() -> None:
    """Else a soak of hours would take all the memory there is."""
    for outcome in outcomes(range(1, 4), Home.EMBEDDED, size=Size.TINY):
        assert outcome.ok
        assert gc.collect() < 100
