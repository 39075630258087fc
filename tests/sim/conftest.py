"""Runs of the simulator, with the garbage collector as a campaign sets it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from bullpen.sim.campaign import GC_THRESHOLDS


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    """Do not look through the whole test process again and again: a quarter of a run's time."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()
