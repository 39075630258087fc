"""Settings for every test."""

from __future__ import annotations

import os

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave other people's clusters alone unless they are asked for by name."""
    if "cluster" in config.option.markexpr:
        return
    kept = [item for item in items if item.get_closest_marker("cluster") is None]
    config.hook.pytest_deselected(items=[i for i in items if i.get_closest_marker("cluster")])
    items[:] = kept
