"""Workloads to make Pods of, and the Pods they should become.

``python tests/unit/kubernetes/k8s_workloads.py`` writes the latter anew, to be looked at.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bullpen.api import codec, yaml
from bullpen.api.meta import LocalObjectReference
from bullpen.api.virtualtargetclass import (
    Image,
    Images,
    PullPolicy,
    ResourceRequirements,
    Scheduling,
    Toleration,
)
from bullpen.placements.base import Artifact, Hosting, Needs, Workload
from bullpen.placements.pod import rendering
from bullpen.placements.pod.rendering import PodSettings

GOLDEN = Path(__file__).parent / "golden"
DIGEST = f"sha256:{'a' * 64}"

SETTINGS = PodSettings(
    exporter_image="registry.example/bullpen:1", runtime_images={"qemu": "registry.example/qemu:1"}
)

MOCK = Workload(
    key=("lab", "mock-0"),
    owner_uid="uid-0",
    provisioner="mock.jumpstarter.dev",
    needs=Needs(memory_bytes=25 << 20, cpus=0.01),
    render=lambda site: '{"token":"a secret"}',
    hosting=Hosting(labels={"exporterset.jumpstarter.dev/name": "mock", "board": "mock"}),
)

QEMU = replace(
    MOCK,
    key=("lab", "uboot-3"),
    owner_uid="uid-3",
    provisioner="qemu.jumpstarter.dev",
    needs=Needs(
        memory_bytes=(128 + 160) << 20,
        cpus=1,
        kvm_for="x86_64",
        runtime="qemu",
        artifacts=(
            Artifact(path="/usr/lib/u-boot/qemu_arm64/u-boot.bin"),
            Artifact(url="https://images.example/root.qcow2", digest=DIGEST),
        ),
    ),
    single_use=False,
    hosting=Hosting(labels={"exporterset.jumpstarter.dev/name": "uboot"}),
)

DEMANDING = replace(
    QEMU,
    key=("lab", "linux-7"),
    owner_uid="uid-7",
    single_use=True,
    hosting=Hosting(
        labels={"exporterset.jumpstarter.dev/name": "linux"},
        credentials="backend-login",
        images=Images(
            exporter=Image(
                image="registry.example/exporter:2", image_pull_policy=PullPolicy.ALWAYS
            ),
            runtime=Image(image="registry.example/qemu-kvm:2"),
            pull_secrets=(LocalObjectReference(name="registry-login"),),
        ),
        scheduling=Scheduling(
            node_selector={"kubernetes.io/arch": "amd64"},
            affinity={
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "kvm", "operator": "Exists"}]}
                        ]
                    }
                }
            },
            tolerations=(Toleration(key="lab", operator="Exists", effect="NoSchedule"),),
            resources=ResourceRequirements(
                requests={"cpu": 2},
                limits={"memory": "2Gi", "devices.kubevirt.io/kvm": 1},
            ),
        ),
    ),
)

WORKLOADS = {"mock": MOCK, "qemu": QEMU, "demanding": DEMANDING}


def rendered(workload: Workload) -> str:
    return yaml.dump(codec.encode(rendering.pod(workload, SETTINGS)))


if __name__ == "__main__":
    for name, workload in WORKLOADS.items():
        (GOLDEN / f"{name}.yaml").write_text(rendered(workload))
