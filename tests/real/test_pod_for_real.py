"""Pods as they are rendered, run as a node would run them: real exporters, real QEMU."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pod_runner import RunningPod
from real_placement import UBOOT, exporter_config, leased, spec_for

from bullpen.api import codec
from bullpen.placements.base import Workload
from bullpen.placements.pod import names, rendering
from bullpen.placements.pod.rendering import PodSettings
from bullpen.provisioners.base import Recipe
from bullpen.provisioners.mock import MockRecipe
from bullpen.provisioners.qemu import QemuRecipe
from support.real_service import Service

pytestmark = [
    pytest.mark.real,
    pytest.mark.patient,
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a container's mounts"),
]

SETTINGS = PodSettings(exporter_image="here", runtime_images={"qemu": "here"})

CONSOLE = (
    "import sys\n"
    "from jumpstarter.common.utils import env\n"
    "with env() as client:\n"
    "    with client.serial.pexpect() as console:\n"
    "        console.logfile_read = sys.stdout.buffer\n"
    "        console.expect('autoboot', timeout=30)\n"
    "print()\n"
)


def pod_for(
    service: Service, name: str, recipe: Recipe, directory: Path, **chosen: Any
) -> RunningPod:
    spec = spec_for(exporter_config(service, name), recipe.name, **chosen)
    workload = Workload(
        spec=spec,
        needs=recipe.needs(spec.profile),
        export=lambda site: recipe.export(spec.profile, site),
    )
    secret = rendering.config_secret(workload)
    pod = codec.encode(rendering.pod(workload, SETTINGS))
    return RunningPod(directory, pod, {secret.metadata.name: secret.data})


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
