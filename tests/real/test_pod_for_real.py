"""Pods as they are rendered, run as a node would run them: real exporters, real QEMU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pod_runner import RunningPod
from real_placement import UBOOT, exporter_config, leased, spec_for

from bullpen.api import codec
from bullpen.core.targets.profiles import ProfileDisk
from bullpen.placements.base import Workload
from bullpen.placements.pod import names, rendering
from bullpen.placements.pod.rendering import PodSettings
from bullpen.provisioners.base import Recipe
from bullpen.provisioners.mock import MockRecipe
from bullpen.provisioners.qemu import QemuRecipe
from support.real_service import Service, eventually

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a container's mounts"),
]

SETTINGS = PodSettings(exporter_image="here", runtime_images={"qemu": "here"})

CONSOLE = (
    "import sys\n"
    "from jumpstarter.common.utils import env\n"
    "with env() as client:\n"
    "    with client.serial.pexpect() as console:\n"
    "        console.logfile_read = sys.stdout.buffer\n"
    "        console.expect('autoboot', timeout=120)\n"
    "print()\n"
)


def pod_for(
    service: Service,
    name: str,
    recipe: Recipe,
    directory: Path,
    *,
    claims: Path | None = None,
    **chosen: Any,
) -> RunningPod:
    spec = spec_for(exporter_config(service, name), recipe.name, **chosen)
    workload = Workload(
        spec=spec,
        needs=recipe.needs(spec.profile),
        export=lambda site: recipe.export(spec.profile, site),
    )
    secret = rendering.config_secret(workload)
    pod = codec.encode(rendering.pod(workload, SETTINGS))
    return RunningPod(directory, pod, {secret.metadata.name: secret.data}, claims)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "pod"
    shutil.rmtree(tmp_path / "pod", ignore_errors=True)


def test_uboot_boots_in_the_sidecar_and_the_pod_completes_with_its_lease(
    service: Service, place: Path
) -> None:
    pod = pod_for(service, "in-a-pod", QemuRecipe(host_arch="x86_64"), place, parameters=UBOOT)
    try:
        pod.start()
        with leased(service, "in-a-pod") as lessee:
            (place / "console.py").write_text(CONSOLE)
            assert "U-Boot 20" in lessee.run(f"python {place}/console.py")
        assert pod.wait() == (0, {"reason": "Completed", "detail": "served its lease"})
    except BaseException:
        print(pod.log("exporter"), pod.log("target-runtime"))
        raise
    finally:
        pod.stop()
        pod.kill()


def test_a_pod_that_is_told_to_retire_ends_well(service: Service, place: Path) -> None:
    pod = pod_for(service, "retires", MockRecipe(), place, single_use=False)
    try:
        pod.start()
        with leased(service, "retires"):
            pod.annotate(names.RETIRE, "true")
        assert pod.wait() == (0, {"reason": "Completed", "detail": "served its lease"})
    finally:
        pod.kill()


def test_a_pod_that_is_deleted_leaves_at_once(service: Service, place: Path) -> None:
    pod = pod_for(service, "deleted", MockRecipe(), place, single_use=False)
    try:
        pod.start()
        pod.stop()
        code, said = pod.wait()
        assert (code, said["reason"]) == (1, "Crashed")
    finally:
        pod.kill()


MIB = 1 << 20


def lasting_pod(service: Service, directory: Path, claims: Path, size: int) -> RunningPod:
    """A machine that is kept, with a root disk on a claim; its exporter is called ``directory``."""
    disk = ProfileDisk(name="droot", key=("default", "root"), uid="uid-disk", size_bytes=size)
    return pod_for(
        service, directory.name, QemuRecipe(host_arch="x86_64"), directory, claims=claims,
        parameters=UBOOT, single_use=False, keep=True, disks=(disk,),
    )  # fmt: skip


def machines() -> list[str]:
    """Command lines of machines that have the disk of the claim."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if process.info["name"].startswith("qemu-system") and "/disks/droot/" in line:
            found.append(line)
    return found


def image_tool(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout


def test_a_lasting_machine_finds_its_disk_on_the_claim_again(
    service: Service, place: Path, tmp_path: Path
) -> None:
    claims, file = tmp_path / "claims", tmp_path / "claims" / "root" / names.DISK_FILE
    first = lasting_pod(service, place / "lasts", claims, 8 * MIB)
    try:
        first.start()
        eventually(lambda: len(machines()) == 1, seconds=120, what="the machine")
        for _ in range(2):
            with leased(service, "lasts"):
                assert len(machines()) == 1, "neither a lease nor its end changes it"
        first.stop()
        assert not machines()
    except BaseException:
        print(first.log("exporter"), first.log("target-runtime"))
        raise
    finally:
        first.kill()
    image_tool("qemu-io", "-f", "qcow2", "-c", "write -P 0xab 0 512", str(file))

    second = lasting_pod(service, place / "lasts-again", claims, 16 * MIB)
    try:
        second.start()
        eventually(lambda: len(machines()) == 1, seconds=120, what="the machine again")
    finally:
        second.stop()
        second.kill()
    assert (
        "pattern verification failed"
        not in image_tool(
            "qemu-io", "-f", "qcow2", "-r", "-c", "read -P 0xab 0 512", str(file)
        ).lower()
    )
    assert (
        json.loads(image_tool("qemu-img", "info", "--output=json", str(file)))["virtual-size"]
        == 16 * MIB
    )
