"""What must work in every cluster, told with the published programs."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from pathlib import Path
from typing import Any

import yaml

from bullpen.api.pod import LEADER
from bullpen.placements.pod.rendering import container_security, pod_security
from support.cluster_lab import TAKE_OVER_SECONDS_MAX, ClusterLab, Process, Stopwatch
from support.pressing import shell
from support.real_service import eventually

RECONNECT_SECONDS = 3.0
SESSION_SECONDS = 2.0
"""After which routers have written who was connected."""

REPORTS = 2
"""What an exporter says of itself during a lease: that it is ready, and that it is free again."""

WRITES_MAX = 7
"""Request, taking, assignment; release, end, freeing, label."""


def forced_change_of_leader(lab: ClusterLab) -> None:
    """Two controllers and a router; the leader is killed while a target is in use."""
    apply(lab, pod("controller-a"), pod("controller-b"))
    lab.controller("controller-a", pod="controller-a")
    first = lab.leader()
    eventually(lambda: labelled(lab) == ["controller-a"], what="the label of the leader")
    second = lab.controller("controller-b", pod="controller-b")
    router = lab.router("router-1")
    eventually(lambda: router.ready, what="the router")
    client = lab.create_client("alice", lab.namespace)
    config = lab.create_exporter("e1", {"board": "x"}, namespace=lab.namespace)
    with lab.exporter(config), shell(lab, client, "board=x") as opened:
        assert opened.press()
        held = leases(lab)
        eventually(lambda: second.role.startswith("standby"), what="a standby")
        assert second.ready, "or the Deployment never becomes available"
        assert labelled(lab) == ["controller-a"]
        first.end(signal.SIGKILL)
        watch = Stopwatch()
        assert opened.press(), "the stream must not need a controller"
        assert lab.leader(TAKE_OVER_SECONDS_MAX) is second
        print(f"\nthe standby leads {watch.seconds:.1f} s after its leader was killed")
        eventually(lambda: labelled(lab) == ["controller-b"], what="the label of the new leader")
        assert opened.press()
        assert leases(lab) == held, "no lease is lost or doubled"
        # jmp gives its lease back once, and only if it has found the new leader by then.
        time.sleep(RECONNECT_SECONDS)
        assert opened.leave() == 0
        eventually(lambda: ended(lab) == ["true"], what="the lease being over")
        handed_over(lab, second)
        one_more_lease(lab, client)
    assert router.end() == 0


def handed_over(lab: ClusterLab, leader: Process) -> None:
    """A leader that is told to stop lets the next one lead at once."""
    apply(lab, pod("controller-c"))
    standby = lab.controller("controller-c", pod="controller-c")
    eventually(lambda: standby.role.startswith("standby"), what="a standby")
    watch = Stopwatch()
    assert leader.end() == 0
    assert lab.leader() is standby
    eventually(lambda: labelled(lab) == ["controller-c"], what="the label of the new leader")
    print(f"the standby leads {watch.seconds:.1f} s after its leader was told to stop")
    time.sleep(RECONNECT_SECONDS)


def one_more_lease(lab: ClusterLab, client: Path) -> None:
    """A whole lease, counted."""
    eventually(lambda: lab.exporter_status("e1", lab.namespace) == "Available", seconds=120)
    before, watch = lab.writes(), Stopwatch()
    done = lab.jmp(
        "shell", "--client-config", str(client), "-l", "board=x", "--", "j", "power", "on"
    )
    assert done.returncode == 0
    seconds = watch.seconds
    eventually(lambda: ended(lab) == ["true", "true"], what="the second lease being over")
    eventually(lambda: lab.exporter_status("e1", lab.namespace) == "Available", seconds=120)
    time.sleep(SESSION_SECONDS)
    spent = lab.writes() - before
    print(f"a lease, start to end, took {seconds:.1f} s and {spent.total()} writes: {dict(spent)}")
    own = sum(n for (who, _, what), n in spent.items() if who != "router-1" and what != "events")
    sessions = sum(
        n for (who, _, what), n in spent.items() if who == "router-1" and what != "events"
    )
    print(
        f"{own - REPORTS} for the lease, {REPORTS} the exporter's reports, {sessions} for sessions,"
        f" {spent.total() - own - sessions} events"
    )
    assert own - REPORTS <= WRITES_MAX


def stolen_leadership(lab: ClusterLab) -> None:
    """A leader that finds another's name in its place stops at once and says so."""
    leader = lab.controller("controller-a")
    assert lab.leader() is leader
    lab.kubectl(
        "patch", "leases.coordination.k8s.io", "bullpen-controller", "-n", lab.namespace,
        "--type", "merge", "-p", '{"spec": {"holderIdentity": "thief"}}',
    )  # fmt: skip
    assert leader.process.wait(120) == 1
    assert "thief holds it now" in leader.log.read_text()


def pod(name: str) -> dict[str, Any]:
    """A Pod for a process to label; the process itself runs beside the cluster."""
    container = {
        "name": "sleep",
        "image": "localhost/none",
        # The namespace of an installation admits no other Pods.
        "securityContext": container_security(),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "nodeName": "nowhere",
            "securityContext": pod_security(),
        },
    }


def labelled(lab: ClusterLab) -> list[str]:
    """The Pods that the Service of the controller would select."""
    found = get(lab, "pods", "-l", f"{LEADER}=bullpen-controller")
    return [item["metadata"]["name"] for item in found["items"]]


def leases(lab: ClusterLab) -> list[tuple[str, str, bool]]:
    """Name, exporter and end of every lease."""
    found = get(lab, "leases.jumpstarter.dev")["items"]
    return [
        (
            item["metadata"]["name"],
            item["status"].get("exporterRef", {}).get("name", ""),
            item["status"]["ended"],
        )
        for item in found
    ]


def ended(lab: ClusterLab) -> list[str]:
    return [str(over).lower() for _, _, over in leases(lab)]


def get(lab: ClusterLab, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        lab.kubectl("get", *words, "-n", lab.namespace, "-o", "json").stdout
    )
    return found


def apply(lab: ClusterLab, *documents: dict[str, Any]) -> None:
    text = yaml.safe_dump_all(documents)
    lab.kubectl("apply", "-n", lab.namespace, "-f", "-", input=text)


def pool(name: str, provisioner: str, **spec: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A class and a set of it."""
    group = "virtualtarget.jumpstarter.dev/v1alpha1"
    labels = {"pool": name}
    return (
        {
            "apiVersion": group,
            "kind": "VirtualTargetClass",
            "metadata": {"name": name},
            "spec": {"provisioner": provisioner, **spec.pop("of_class", {})},
        },
        {
            "apiVersion": group,
            "kind": "ExporterSet",
            "metadata": {"name": name},
            "spec": {
                "virtualTargetClassName": name,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"drivers": []}},
                **spec,
            },
        },
    )


def status(lab: ClusterLab, name: str) -> dict[str, Any]:
    found: dict[str, Any] = get(lab, "exporterset", name).get("status", {})
    return found


def condition(lab: ClusterLab, name: str, type_: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = status(lab, name).get("conditions", [])
    return next((item for item in found if item["type"] == type_), {})


def pool_on_this_machine(lab: ClusterLab) -> None:
    """A pool whose members are processes here: warm, leased, replaced, gone."""
    lab.controller("controller-a")
    lab.leader()
    router = lab.router("router-1")
    place = ("--placement", "local", "--data", str(lab.home / "targets"))
    worker = lab.provisioner("mock", "mock.jumpstarter.dev", *place)
    eventually(lambda: router.ready and worker.ready, seconds=120, what="router and provisioner")
    apply(lab, *pool("boards", "mock.jumpstarter.dev", minReplicas=1, maxReplicas=2))
    eventually(
        lambda: status(lab, "boards").get("availableReplicas") == 1, seconds=120, what="a member"
    )
    before = members(lab)
    client = lab.create_client("alice", lab.namespace)
    with shell(lab, client, "pool=boards") as opened:
        assert opened.press()
        assert status(lab, "boards")["replicas"] <= 2
        assert opened.leave() == 0
    eventually(
        lambda: members(lab) and not set(members(lab)) & set(before), seconds=120, what="another"
    )
    lab.kubectl("delete", "exporterset", "boards", "-n", lab.namespace, "--wait=false")
    eventually(lambda: not members(lab), seconds=120, what="everything being gone")
    assert worker.end() == 0


def schedule(lab: ClusterLab) -> None:
    """Have every Pod looked at by a scheduler; where none is, say what it would say."""
    eventually(lambda: len(get(lab, "pods")["items"]) >= 2, seconds=120, what="Pods")
    with contextlib.suppress(AssertionError):
        eventually(lambda: all(map(_looked_at, get(lab, "pods")["items"])), seconds=3)
        return
    verdict = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/0 nodes are available.",
    }
    for item in get(lab, "pods")["items"]:
        lab.kubectl(
            "patch", "pod", item["metadata"]["name"], "-n", lab.namespace,
            "--subresource", "status", "--type", "merge",
            "-p", json.dumps({"status": {"phase": "Pending", "conditions": [verdict]}}),
        )  # fmt: skip


def _looked_at(pod: dict[str, Any]) -> bool:
    found = pod.get("status", {}).get("conditions", [])
    return any(item["type"] == "PodScheduled" for item in found)


def members(lab: ClusterLab) -> list[str]:
    return [item["metadata"]["name"] for item in get(lab, "exporters")["items"]]


def pool_of_pods_without_nodes(lab: ClusterLab) -> None:
    """Pods that nobody runs: the set makes no more than it may, and says why it waits."""
    lab.controller("controller-a")
    lab.leader()
    worker = lab.provisioner(
        "qemu-pods", "qemu.jumpstarter.dev",
        "--exporter-image", "registry.test/bullpen:1", "--runtime-image", "qemu=registry.test/q:1",
    )  # fmt: skip
    eventually(lambda: worker.ready, seconds=120, what="the provisioner")
    apply(
        lab,
        *pool(
            "machines", "qemu.jumpstarter.dev", minReplicas=2, maxReplicas=3,
            of_class={"parameters": {"arch": "aarch64", "firmware": {"path": "/u-boot.bin"}}},
        ),
    )  # fmt: skip
    eventually(lambda: len(get(lab, "pods")["items"]) >= 1, seconds=120, what="Pods")
    schedule(lab)
    eventually(
        lambda: "Unschedulable" in condition(lab, "machines", "Degraded").get("message", ""),
        seconds=120,
        what="the set saying why it waits",
    )
    print(f"\nthe set says: {condition(lab, 'machines', 'Degraded')}")
    pods = [item["metadata"]["name"] for item in get(lab, "pods")["items"]]
    assert set(pods) <= set(members(lab)), "a Pod is named after its exporter"
    assert len(pods) <= 3
    lab.kubectl("delete", "exporterset", "machines", "-n", lab.namespace, "--wait=false")
    eventually(lambda: not members(lab), seconds=120, what="the members being gone")
    assert worker.end() == 0
