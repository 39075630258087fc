"""What lasting targets must do in every cluster, told with the published programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from support.cluster_lab import ClusterLab
from support.cluster_stories import apply, get
from support.qemu_pools import CLASS
from support.real_service import eventually

LASTING_SECONDS = 120.0
"""Three small machines start without KVM, on a busy machine."""

DOWN = "/apis/subresources.virtualtarget.jumpstarter.dev/v1alpha1/namespaces/{}/{}/scaledownwith"


def lasting_pool(name: str) -> dict[str, Any]:
    """Two machines, each with a root disk of its own that is kept when it leaves."""
    return {
        "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
        "kind": "VirtualTargetPool",
        "metadata": {"name": name},
        "spec": {
            "replicas": 2,
            "scaleDownPolicy": "Explicit",
            "template": {
                "metadata": {"labels": {"board": name}},
                "spec": {
                    "virtualTargetClassName": CLASS["metadata"]["name"],
                    "drivers": [
                        {"name": "power", "ref": "qemu.power"},
                        {"name": "serial", "ref": "qemu.console"},
                    ],
                    "disks": [{"virtualDisk": "root"}],
                },
            },
            "virtualDiskTemplates": [
                {"name": "root", "reclaim": {"onScaleDown": "Retain"}, "spec": {"size": "8Mi"}}
            ],
        },
    }


def lasting_machines(lab: ClusterLab, *words: str) -> None:
    """Two machines become three, one leaves by name, disks grow, and its disk is used again.

    ``words`` are further options of the controller.
    """
    lab.controller("controller-a", *words)
    lab.leader()
    place = ("--placement", "local", "--data", str(lab.home / "targets"))
    worker = lab.provisioner("qemu", "qemu.jumpstarter.dev", *place)
    eventually(lambda: worker.ready, seconds=120, what="the provisioner")
    apply(lab, CLASS, lasting_pool("runners"))
    until_lasting(lab, readyReplicas=2, replicas=2)
    assert lasting_members(lab) == {"runners-0": "runners-root-0", "runners-1": "runners-root-1"}

    scale(lab, 3)
    until_lasting(lab, readyReplicas=3, replicas=3)
    refused = scale(lab, 2, check=False)
    assert "removes members by name only" in refused, refused
    leave_by_name(lab, "runners-1")
    until_lasting(lab, readyReplicas=2, replicas=2)
    assert sorted(lasting_members(lab)) == ["runners-0", "runners-2"]

    grown = lasting_pool("runners")["spec"]["virtualDiskTemplates"]
    grown[0]["spec"]["size"] = "16Mi"
    patch = json.dumps({"spec": {"virtualDiskTemplates": grown}})
    lab.kubectl(
        "patch", "virtualtargetpool/runners", "-n", lab.namespace, "--type=merge", "-p", patch
    )
    for disk in ("runners-root-0", "runners-root-1", "runners-root-2"):
        lab.kubectl(
            "wait", f"virtualdisk/{disk}", "-n", lab.namespace,
            "--for=jsonpath={.status.capacity}=16Mi", f"--timeout={LASTING_SECONDS:.0f}s",
        )  # fmt: skip

    scale(lab, 3)
    until_lasting(lab, readyReplicas=3, replicas=3)
    assert lasting_members(lab)["runners-3"] == "runners-root-1", "the disk that was free"
    lab.kubectl("delete", "virtualtargetpool", "runners", "-n", lab.namespace, "--wait=false")
    eventually(
        lambda: not lasting_members(lab) and not get(lab, "virtualdisks")["items"],
        seconds=LASTING_SECONDS,
        what="everything being gone",
    )
    assert worker.end() == 0


def leave_by_name(lab: ClusterLab, member: str) -> None:
    """Remove a member by name, twice: the second time nothing more happens."""
    path = DOWN.format(lab.namespace, "virtualtargetpools/runners")
    body = json.dumps({"targets": [member]})
    for leaving in ([member], []):
        done = lab.kubectl("create", "--raw", path, "-f", "-", input=body)
        answer = json.loads(done.stdout)["status"]
        assert (answer["replicas"], answer["leaving"]) == (2, leaving)


def scale(lab: ClusterLab, replicas: int, *, check: bool = True) -> str:
    """What kubectl complains about."""
    pool = "virtualtargetpool/runners"
    return lab.kubectl(
        "scale", pool, "-n", lab.namespace, f"--replicas={replicas}", check=check
    ).stderr


def until_lasting(lab: ClusterLab, **counts: int) -> None:
    def done() -> bool:
        found = get(lab, "virtualtargetpool", "runners").get("status") or {}
        return all(found.get(key) == value for key, value in counts.items())

    eventually(done, seconds=LASTING_SECONDS, what=f"the pool having {counts}")


def lasting_members(lab: ClusterLab) -> dict[str, str]:
    """The members and their disks."""
    found = get(lab, "virtualtargets")["items"]
    return {m["metadata"]["name"]: m["spec"]["disks"][0]["virtualDisk"] for m in found}


def autoscaled_machines(lab: ClusterLab) -> None:
    """An HPA makes a pool as large as its leases need, and small again when they end."""
    worker = lab.provisioner(
        "qemu", "qemu.jumpstarter.dev",
        "--placement", "local", "--data", str(lab.home / "targets"),
    )  # fmt: skip
    eventually(lambda: worker.ready, seconds=120, what="the provisioner")
    made = lasting_pool("runners")
    made["spec"] |= {"replicas": 1, "scaleDownPolicy": "NewestFirst"}
    apply(lab, CLASS, made)
    until_lasting(lab, readyReplicas=1, replicas=1)
    lab.create_client("alice", lab.namespace)
    apply(lab, *(waiting_lease(f"job-{number}") for number in range(3)))
    apply(lab, autoscaler())
    until_lasting(lab, readyReplicas=3, leasedReplicas=3)
    found = get(lab, "virtualtargetpool", "runners")["spec"]["replicas"]
    assert found == 3, found
    seen = get(lab, "hpa", "runners")["status"]
    assert seen["currentMetrics"][0]["external"]["metric"]["name"] == "leases"
    for number in range(3):
        lab.kubectl("delete", "leases.jumpstarter.dev", f"job-{number}", "-n", lab.namespace)
    until_lasting(lab, replicas=1, readyReplicas=1, leasedReplicas=0)
    assert len(lasting_members(lab)) == 1
    lab.kubectl("delete", "hpa", "runners", "-n", lab.namespace)
    lab.kubectl("delete", "virtualtargetpool", "runners", "-n", lab.namespace, "--wait=false")
    eventually(lambda: not lasting_members(lab), seconds=LASTING_SECONDS, what="its end")
    assert worker.end() == 0


def autoscaled_pods(lab: ClusterLab, asked: Callable[[], bool]) -> str:
    """An HPA makes a pool larger because its Pods use twice what they should; the pool's uid.

    No node runs the Pods: that they run is written to their status.
    """
    lab.controller("controller-a")
    lab.leader()
    worker = lab.provisioner(
        "qemu-pods", "qemu.jumpstarter.dev",
        "--exporter-image", "registry.test/bullpen:1", "--runtime-image", "qemu=registry.test/q:1",
    )  # fmt: skip
    eventually(lambda: worker.ready, seconds=120, what="the provisioner")
    made = lasting_pool("runners")
    made["spec"] |= {"scaleDownPolicy": "NewestFirst"}
    apply(lab, CLASS, made)
    eventually(lambda: len(mounted(lab)) == 2, seconds=LASTING_SECONDS, what="two Pods")
    for name in ("runners-0", "runners-1"):
        running = json.dumps({"status": {"phase": "Running"}})
        words = ("--subresource=status", "--type=merge", "-p", running)
        lab.kubectl("patch", "pod", name, "-n", lab.namespace, *words)
    target = {"type": "AverageValue", "averageValue": "100Mi"}
    by_memory = autoscaler()
    by_memory["spec"]["metrics"] = [
        {"type": "Resource", "resource": {"name": "memory", "target": target}}
    ]
    apply(lab, by_memory)

    def grown() -> bool:
        return bool(get(lab, "virtualtargetpool", "runners")["spec"]["replicas"] == 4)

    eventually(grown, seconds=LASTING_SECONDS, what="the HPA asking for twice as many")
    eventually(lambda: len(mounted(lab)) == 4, seconds=LASTING_SECONDS, what="four Pods")
    assert asked()
    seen = get(lab, "hpa", "runners")["status"]["currentMetrics"][0]["resource"]
    assert seen["current"]["averageValue"] == "200Mi", seen
    uid = str(get(lab, "virtualtargetpool", "runners")["metadata"]["uid"])
    lab.kubectl("delete", "hpa", "runners", "-n", lab.namespace)
    lab.kubectl("delete", "virtualtargetpool", "runners", "-n", lab.namespace, "--wait=false")
    eventually(lambda: not get(lab, "pods")["items"], seconds=LASTING_SECONDS, what="its end")
    assert worker.end() == 0
    return uid


def waiting_lease(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "jumpstarter.dev/v1alpha1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {
            "clientRef": {"name": "alice"},
            "selector": {"matchLabels": {"board": "runners"}},
            "duration": "1h",
        },
    }


def autoscaler() -> dict[str, Any]:
    """One member for each lease, between one and four."""
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "runners"},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
                "kind": "VirtualTargetPool",
                "name": "runners",
            },
            "minReplicas": 1,
            "maxReplicas": 4,
            "metrics": [
                {
                    "type": "External",
                    "external": {
                        "metric": {"name": "leases"},
                        "target": {"type": "AverageValue", "averageValue": "1"},
                    },
                }
            ],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    }


def lasting_pods_without_nodes(lab: ClusterLab) -> None:
    """Members as Pods that nobody runs: each mounts its own claim, which outlives it."""
    lab.controller("controller-a")
    lab.leader()
    worker = lab.provisioner(
        "qemu-pods", "qemu.jumpstarter.dev",
        "--exporter-image", "registry.test/bullpen:1", "--runtime-image", "qemu=registry.test/q:1",
    )  # fmt: skip
    eventually(lambda: worker.ready, seconds=120, what="the provisioner")
    apply(lab, CLASS, lasting_pool("runners"))
    wanted = {"runners-0": ["runners-root-0"], "runners-1": ["runners-root-1"]}
    eventually(lambda: mounted(lab) == wanted, seconds=LASTING_SECONDS, what="Pods with claims")
    before = claims(lab)
    assert set(before) == {"runners-root-0", "runners-root-1"}
    uid = get(lab, "pod", "runners-0")["metadata"]["uid"]
    lab.kubectl("delete", "pod", "runners-0", "-n", lab.namespace, "--wait=false")

    def again() -> bool:
        found = {item["metadata"]["name"]: item for item in get(lab, "pods")["items"]}
        return "runners-0" in found and found["runners-0"]["metadata"]["uid"] != uid

    eventually(again, seconds=LASTING_SECONDS, what="another Pod")
    assert mounted(lab) == wanted
    assert claims(lab) == before, "the claims are the same"
    lab.kubectl("delete", "virtualtargetpool", "runners", "-n", lab.namespace, "--wait=false")
    eventually(
        lambda: not claims(lab) and not get(lab, "pods")["items"],
        seconds=LASTING_SECONDS,
        what="everything being gone",
    )
    assert worker.end() == 0


def mounted(lab: ClusterLab) -> dict[str, list[str]]:
    """The claims of each Pod."""
    return {
        pod["metadata"]["name"]: [
            volume["persistentVolumeClaim"]["claimName"]
            for volume in pod["spec"]["volumes"]
            if "persistentVolumeClaim" in volume
        ]
        for pod in get(lab, "pods")["items"]
    }


def claims(lab: ClusterLab) -> dict[str, str]:
    """The claims and their uids."""
    found = get(lab, "persistentvolumeclaims")["items"]
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in found}
