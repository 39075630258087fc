"""What every provisioner promises, kept by those that are here: see ``bullpen.testing``."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from bullpen.provisioners import android, container, mock, program, qemu, renode
from bullpen.testing import android_emulator_stand_in
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


@pytest.mark.slow
class TestPrograms(ProvisionerContract):
    plugin = program.PLUGIN
    parameters: ClassVar[Mapping[str, object]] = {"program": "cat"}


@pytest.mark.slow
class TestRenode(ProvisionerContract):
    plugin = renode.PLUGIN
    parameters: ClassVar[Mapping[str, object]] = {"platform": "platforms/cpus/miv.repl"}


@pytest.mark.slow
class TestAndroid(ProvisionerContract):
    plugin = android.PLUGIN
    parameters: ClassVar[Mapping[str, object]] = {
        "sdk": "/usr/lib/android-sdk",
        "systemImage": "platform-tools",
        "emulator": android_emulator_stand_in.__file__,
        "accel": "none",
    }


@pytest.mark.slow
class TestContainers(ProvisionerContract):
    plugin = container.PLUGIN


@pytest.mark.slow
class TestQemu(ProvisionerContract):
    plugin = qemu.PLUGIN
