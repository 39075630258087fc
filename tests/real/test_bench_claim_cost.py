"""The benchmark of what claims cost a lease: its reference does not decide about claims."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bullpen.api.codec import decode
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.bench import claim_cost
from bullpen.bench.claim_cost import WITHOUT
from bullpen.bench.lab import NAMESPACE, Lab, populate, service
from bullpen.cluster import kubeconfig
from bullpen.cluster.objects import ClusterObjects

pytestmark = pytest.mark.real

LOOKS, LOOK_SECONDS = 30, 0.1
"""A claim is told why it waits within a tenth of a second; the reference never does."""

CLAIM = {
    "apiVersion": "device.jumpstarter.dev/v1alpha1",
    "kind": "DeviceClaim",
    "metadata": {"name": "c", "namespace": NAMESPACE},
    "spec": {
        "clientRef": {"name": "bench"},
        "requests": [{"name": "r", "exactly": {"deviceClassName": "none"}}],
        "duration": "1h",
    },
}


async def test_both_services_take_leases_in_turns() -> None:
    results = await claim_cost.run(rounds=1, exporters=2, leases=4)
    assert [result.name for result in results] == [
        "warm lease p50, against a lab without claims",
        "processor time of a lease, against a lab without claims",
    ]
    assert min(results[0].ours, results[0].reference) > 0


@pytest.mark.parametrize("program", [(), WITHOUT], ids=["the service", "the reference"])
async def test_only_the_reference_leaves_claims_alone(
    tmp_path: Path, program: tuple[str, ...]
) -> None:
    with service(tmp_path, program=program) as lab:
        assert await _decided(lab) is not (program == WITHOUT)


async def _decided(lab: Lab) -> bool:
    """Whether a claim is told why it waits."""
    async with ClusterObjects(kubeconfig.load(lab.kubeconfig), manager="test") as objects:
        await populate(lab, 1)
        await objects.create(decode(DeviceClaim, CLAIM))
        for _ in range(LOOKS):
            found = await objects.get(DeviceClaim, NAMESPACE, "c")
            if found.status.conditions:
                return True
            await asyncio.sleep(LOOK_SECONDS)
    return False
