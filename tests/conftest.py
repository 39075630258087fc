"""Settings for every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Tests must say the same thing every time they run, on a machine of any speed. `make check`
# tries a few examples, `make test` more. The search for new counterexamples is a run of its
# own: HYPOTHESIS_PROFILE=search make unit.
same = settings(derandomize=True, deadline=None, database=None)
settings.register_profile("quick", same, max_examples=15)
settings.register_profile("repeatable", same, max_examples=60)
settings.register_profile("search", deadline=None, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "cluster: changes the cluster that KUBECONFIG names; `make test-cluster` only"
    )


LABS = ("contract", "sim")
"""The directories of tests that run a lab in memory."""

SLOW_SECONDS_MAX = 300
"""How long a slow or real test may take that does not say otherwise, on a busy machine."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark labs, give slow tests more time, and leave clusters alone unless asked for by name."""
    for item in items:
        if item.path.relative_to(Path(__file__).parent).parts[0] in LABS:
            item.add_marker(pytest.mark.lab)
        long = item.get_closest_marker("slow") or item.get_closest_marker("real")
        if long and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS_MAX))
    if "cluster" in config.option.markexpr:
        return
    kept = [item for item in items if item.get_closest_marker("cluster") is None]
    config.hook.pytest_deselected(items=[i for i in items if i.get_closest_marker("cluster")])
    items[:] = kept
