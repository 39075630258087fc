"""Many exporters at once, with a mock driver: all from one apply, leased, replaced, and gone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from support.grpc_caller import calling
from support.qemu_pools import directories, until
from support.real_service import Service, eventually, running_service

pytestmark = [pytest.mark.real, pytest.mark.slow]

MEMBERS = 100
SECONDS_MAX = 240.0

OWN_BYTES_MAX = 25 << 20
API = "virtualtarget.jumpstarter.dev/v1alpha1"
CLASS = {
    "apiVersion": API,
    "kind": "VirtualTargetClass",
    "metadata": {"name": "mock"},
    "spec": {"provisioner": "mock.jumpstarter.dev"},
}
SET: dict[str, Any] = {
    "apiVersion": API,
    "kind": "ExporterSet",
    "metadata": {"name": "many"},
    "spec": {
        "virtualTargetClassName": "mock",
        "minAvailableReplicas": MEMBERS,
        "maxReplicas": MEMBERS,
        "scaleDownCooldown": "1s",
        "selector": {"matchLabels": {"board": "many"}},
        "template": {"metadata": {"labels": {"board": "many"}}},
    },
}


async def lease_all(service: Service) -> list[Any]:
    async with calling(service.data / "clients" / "default.yaml") as caller:

        async def one() -> Any:
            return await caller.acquired(await caller.create_lease("board=many", lasts=600))

        return await asyncio.gather(*(one() for _ in range(MEMBERS)))


async def release_all(service: Service, leases: list[Any]) -> None:
    async with calling(service.data / "clients" / "default.yaml") as caller:
        names = [str(lease.name).rpartition("/")[2] for lease in leases]
        await asyncio.gather(*(caller.delete_lease(name) for name in names))


def exporters(service: Service) -> list[psutil.Process]:
    assert service.process is not None
    family = psutil.Process(service.process.pid).children(recursive=True)
    return [process for process in family if process.name().startswith("bp-many-")]


def test_one_apply_serves_all_at_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        service.kubectl("apply", "-f", "-", input=yaml.safe_dump_all([CLASS, SET]))
        until(service, "many", seconds=SECONDS_MAX, availableReplicas=MEMBERS)
        first = {process.pid for process in exporters(service)}
        assert len(first) == MEMBERS
        own = [process.memory_full_info().uss for process in exporters(service)]
        assert sum(own) / MEMBERS <= OWN_BYTES_MAX

        leases = asyncio.run(lease_all(service))
        assert len({lease.exporter for lease in leases}) == MEMBERS, "each has one of its own"
        asyncio.run(release_all(service, leases))
        until(
            *(service, "many"),
            seconds=SECONDS_MAX,
            availableReplicas=MEMBERS,
            leasedReplicas=0,
            replicas=MEMBERS,
        )
        assert not first & {process.pid for process in exporters(service)}, "all were replaced"

        service.kubectl(
            "patch", "exporterset", "many", "--type=merge",
            "-p", '{"spec":{"minAvailableReplicas":0}}',
        )  # fmt: skip
        until(service, "many", seconds=SECONDS_MAX, replicas=0)
        eventually(lambda: not exporters(service) and not directories(service))
