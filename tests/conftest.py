"""Settings for every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

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


ONE_BY_ONE = (
    "test_cluster_processes.py",
    "test_flashed_images.py",
    "test_how_to.py",
    "test_program_targets.py",
    "test_qemu_driver.py",
    "test_renode_targets.py",
    "test_router_process.py",
)
"""Long files whose tests share no fixture: any process may run any of their tests."""

LONG = (
    "test_odd_objects.py",
    "test_dashboard.py",
    "test_how_to.py",
    "test_crash_rounds.py",
    "test_watchers.py",
    "test_conformance_leases.py",
    "test_ec2_pools.py",
    "test_wheel.py",
    "test_recipes_real.py",
    "test_claims.py",
    "test_lease_objects.py",
    "test_corellium_pools.py",
    "test_bench_hosts.py",
)
"""Files that take longest. They are handed out first, so that none is left alone at the end."""


class FilesAndTests(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """Hands out whole files in the order of the collection, and the tests of some one by one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return nodeid if Path(file).name in ONE_BY_ONE else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    return FilesAndTests(config, log) if config.getoption("dist") == "loadfile" else None


LABS = ("contract", "sim")
"""The directories of tests that run a lab in memory."""

SLOW_SECONDS_MAX = 600
"""How long a slow or real test may take that does not say otherwise, on a busy machine."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark labs, give slow tests more time, and leave clusters alone unless asked for by name."""
    items.sort(key=_turn)
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


def _turn(item: pytest.Item) -> int:
    """When a test has its turn: those of long files first, all others as they are collected."""
    return LONG.index(item.path.name) if item.path.name in LONG else len(LONG)
