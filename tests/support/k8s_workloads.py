"""Workloads to make Pods of, and the Pods they should become.

``python tests/unit/kubernetes/k8s_workloads.py`` writes the latter anew, to be looked at.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bullpen.api import codec, yaml
from bullpen.api.kinds.virtualdisk import DiskImage
from bullpen.api.kinds.virtualtargetclass import (
    Image,
    Images,
    PullPolicy,
    ResourceRequirements,
    Scheduling,
    Toleration,
)
from bullpen.api.meta import LocalObjectReference
from bullpen.core.targets.exporter_config import Connection
from bullpen.core.targets.profiles import Profile, ProfileDisk
from bullpen.placements.base import Artifact, InstanceSpec, Needs, Workload
from bullpen.placements.pod import rendering
from bullpen.placements.pod.rendering import PodSettings

GOLDEN = Path(__file__).parents[1] / "unit" / "kubernetes" / "golden"
DIGEST = f"sha256:{'a' * 64}"

SETTINGS = PodSettings(
    exporter_image="registry.example/bullpen:1", runtime_images={"qemu": "registry.example/qemu:1"}
)


def spec(name: str, uid: str, profile: Profile) -> InstanceSpec:
    connection = Connection(endpoint="lab:1", token="a secret", ca_pem="")
    return InstanceSpec(key=("lab", name), owner_uid=uid, profile=profile, connection=connection)


MOCK = Workload(
    spec=spec(
        "mock-0",
        "uid-0",
        Profile(
            provisioner="mock.jumpstarter.dev",
            labels={"exporterset.jumpstarter.dev/name": "mock", "board": "mock"},
        ),
    ),
    needs=Needs(memory_bytes=25 << 20, cpus=0.01),
    export=lambda site: {},
)

QEMU = Workload(
    spec=spec(
        "uboot-3",
        "uid-3",
        Profile(
            provisioner="qemu.jumpstarter.dev",
            single_use=False,
            labels={"exporterset.jumpstarter.dev/name": "uboot"},
        ),
    ),
    export=lambda site: {},
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
)

DEMANDING = replace(
    QEMU,
    spec=spec(
        "linux-7",
        "uid-7",
        Profile(
            provisioner="qemu.jumpstarter.dev",
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
    ),
)


def changed(workload: Workload, **chosen: Any) -> Workload:
    """The workload with another profile."""
    profile = replace(workload.spec.profile, **chosen)
    return replace(workload, spec=replace(workload.spec, profile=profile))


LASTING = changed(
    QEMU,
    keep=True,
    disks=(
        ProfileDisk(name="droot", key=("lab", "uboot-root-3"), uid="uid-d", size_bytes=8 << 20),
        ProfileDisk(
            name="dhome",
            key=("lab", "home"),
            uid="uid-h",
            size_bytes=16 << 20,
            source=DiskImage(url="https://images.example/home.qcow2", digest=DIGEST),
        ),
    ),
)

WORKLOADS = {"mock": MOCK, "qemu": QEMU, "demanding": DEMANDING, "lasting": LASTING}


def rendered(workload: Workload) -> str:
    return yaml.dump(codec.encode(rendering.pod(workload, SETTINGS)))


if __name__ == "__main__":
    for name, workload in WORKLOADS.items():
        (GOLDEN / f"{name}.yaml").write_text(rendered(workload))
