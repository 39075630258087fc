"""A host whose KVM passed its test and fails machines: seen on hosts where it really does."""

from __future__ import annotations

import asyncio
import os
import platform
from pathlib import Path

import msgspec
import pytest
from real_placement import leased, sockets, targets

from bullpen.placements.local import kvm
from bullpen.placements.local.kvm import VERDICTS, Verdict
from support.real_service import Service, eventually

pytestmark = pytest.mark.real

BARE: dict[str, object] = {
    "arch": platform.machine(),
    "resources": {"cpu": 1, "memory": "64Mi", "storage": "64Mi"},
}


async def test_a_machine_that_kvm_fails_runs_with_emulation_and_the_host_remembers(
    service: Service, tmp_path: Path
) -> None:
    if not os.access(kvm.DEVICE, os.R_OK | os.W_OK) or not await kvm.prove(platform.machine()):
        pytest.skip("there is no KVM here that fails")
    data = tmp_path / "data"
    file = data / "cache" / VERDICTS
    file.parent.mkdir(parents=True)
    arch = platform.machine()
    passed = Verdict(host=kvm.host_name(), qemu=await kvm.qemu_version(arch), problem="")
    file.write_bytes(msgspec.json.encode({arch: passed}))

    def verdict() -> Verdict:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Verdict])[arch]

    async with targets(service, data) as lab:
        key = await lab.qemu_target("deceived", parameters=BARE)
        with leased(service, "deceived"):
            log = lab.log(key)
            assert "-accel kvm" in log, "it was tried"
            assert "-accel tcg" in log, "the machine runs all the same"
            assert "KVM is not used any more" in log
        await lab.qemu.remove(key)
        await asyncio.to_thread(eventually, lambda: verdict().problem)
    assert "the machine did not start" in verdict().problem
    sockets(data).rmdir()
