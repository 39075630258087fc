"""What every provisioner promises, kept by those that are here: see ``bullpen.testing``."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bullpen.provisioners import mock
from bullpen.testing.benches import INSTANCES_MAX, Bench, FakeBench
from bullpen.testing.controller_stub import TOKEN
from bullpen.testing.provisioner_contract import ProvisionerContract
from support.pod_cluster import PodBench, cluster


class TestFake(ProvisionerContract):
    @contextlib.asynccontextmanager
    async def bench(self, directory: Path) -> AsyncIterator[Bench]:
        yield FakeBench()


class TestPods(ProvisionerContract):
    @contextlib.asynccontextmanager
    async def bench(self, directory: Path) -> AsyncIterator[Bench]:
        async with cluster(pods_max=INSTANCES_MAX) as found:
            yield PodBench(found, TOKEN)


@pytest.mark.slow
class TestLocalProcesses(ProvisionerContract):
    plugin = mock.PLUGIN
