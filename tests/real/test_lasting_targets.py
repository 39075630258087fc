"""Lasting targets on real QEMU: the machine, its disks and its identity stay."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from support.qemu_pools import CLASS, shell
from support.real_service import Service, eventually, free_port_base, running_service

pytestmark = pytest.mark.real

GROUP = "virtualtarget.jumpstarter.dev/v1alpha1"
SECONDS = 90.0
NAME = CLASS["metadata"]["name"]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Service]:
    with running_service(tmp_path, "--port-base", str(free_port_base())) as service:
        apply(service, CLASS)
        yield service


def apply(service: Service, *documents: dict[str, Any]) -> None:
    service.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(documents))


def disk(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": GROUP,
        "kind": "VirtualDisk",
        "metadata": {"name": name},
        "spec": {"size": "8Mi", **spec},
    }


def target(name: str, *disks: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": GROUP,
        "kind": "VirtualTarget",
        "metadata": {"name": name, "labels": {"board": name}},
        "spec": {
            "virtualTargetClassName": NAME,
            "drivers": [
                {"name": "power", "ref": "qemu.power"},
                {"name": "serial", "ref": "qemu.console"},
            ],
            "disks": [{"virtualDisk": each} for each in disks],
            **spec,
        },
    }


def status(service: Service, name: str) -> dict[str, Any]:
    found: Any = service.get("virtualtarget", name)
    return dict(found.get("status") or {})


def until_ready(service: Service, name: str) -> None:
    service.kubectl(
        "wait", f"virtualtarget/{name}", "--for=condition=Ready", f"--timeout={SECONDS:.0f}s"
    )


def machines(service: Service) -> dict[int, list[str]]:
    """Command lines of the running machines of a service, by process id."""
    found = {}
    for process in psutil.process_iter(["name", "cmdline"]):
        line = process.info["cmdline"] or []
        if process.info["name"].startswith("qemu-system") and str(service.data) in " ".join(line):
            found[process.pid] = line
    return found


def machine(service: Service) -> int:
    eventually(lambda: len(machines(service)) == 1, seconds=SECONDS, what="one machine")
    return next(iter(machines(service)))


def argument(line: list[str], name: str) -> str:
    return line[line.index(name) + 1]


def test_a_target_keeps_machine_disk_and_identity(lab: Service) -> None:
    apply(lab, disk("root"), target("vm", "root"))
    until_ready(lab, "vm")
    first, identity = machine(lab), status(lab, "vm")["identity"]
    assert status(lab, "vm")["host"] == platform.node()
    line = machines(lab)[first]
    assert argument(line, "-uuid") == identity["uuid"]
    assert any(f"mac={identity['mac']}" in part for part in line)
    assert any(f"serial={identity['serial']}" in part for part in line)
    assert service_disk(lab, "root").stat().st_nlink == 2

    # Two leases, one machine: neither a lease nor its end changes it.
    for _ in range(2):
        job = shell(lab, "vm", "j", "serial", "pipe", "--help")
        said, _ = job.communicate(timeout=300)
        assert job.returncode == 0, said
    assert machine(lab) == first

    # The machine is killed: it runs again, as itself.
    os.kill(first, signal.SIGKILL)
    eventually(lambda: first not in machines(lab) and machines(lab), seconds=SECONDS)
    until_ready(lab, "vm")
    second = machine(lab)
    assert argument(machines(lab)[second], "-uuid") == identity["uuid"]
    assert status(lab, "vm")["restarts"]["count"] == 1

    # The service is killed: the machine does not notice.
    assert lab.process is not None
    lab.process.kill()
    lab.process.wait()
    lab.start()
    until_ready(lab, "vm")
    assert machine(lab) == second

    # The service is stopped, and everything with it: the machine runs again afterwards.
    lab.stop()
    assert not machines(lab)
    lab.start()
    until_ready(lab, "vm")
    assert argument(machines(lab)[machine(lab)], "-uuid") == identity["uuid"]

    lab.kubectl("delete", "virtualtarget", "vm", f"--timeout={SECONDS:.0f}s")
    assert not machines(lab)
    assert service_disk(lab, "root").stat().st_nlink == 1
    lab.kubectl("delete", "virtualdisk", "root", f"--timeout={SECONDS:.0f}s")
    assert not list((lab.data / "disks").iterdir())


def test_stop_start_restart_and_grow_by_kubectl(lab: Service) -> None:
    apply(lab, disk("root"), target("vm", "root"))
    until_ready(lab, "vm")
    first = machine(lab)
    lab.kubectl("annotate", "virtualtarget/vm", "virtualtarget.jumpstarter.dev/restart=1")
    eventually(lambda: machines(lab) and first not in machines(lab), seconds=SECONDS)
    until_ready(lab, "vm")
    patch = '{"spec":{"running":false}}'
    lab.kubectl("patch", "virtualtarget/vm", "--type=merge", "-p", patch)
    eventually(lambda: status(lab, "vm")["phase"] == "Stopped", seconds=SECONDS)
    assert not machines(lab)
    lab.kubectl("patch", "virtualdisk/root", "--type=merge", "-p", '{"spec":{"size":"16Mi"}}')
    size = "jsonpath={.status.capacity}=16Mi"
    lab.kubectl("wait", "virtualdisk/root", f"--for={size}", f"--timeout={SECONDS:.0f}s")
    lab.kubectl("patch", "virtualtarget/vm", "--type=merge", "-p", patch.replace("false", "true"))
    until_ready(lab, "vm")


def set_disks(service: Service, *disks: str) -> None:
    patch = yaml.safe_dump({"spec": {"disks": [{"virtualDisk": each} for each in disks]}})
    service.kubectl("patch", "virtualtarget/vm", "--type=merge", "-p", patch)


def until_disks(service: Service, *disks: str) -> None:
    """Wait until the machine has these disks, and what was written is in effect."""

    def done() -> bool:
        found = status(service, "vm")
        same = found["writtenRevision"] == found["effectiveRevision"]
        return same and found.get("disks") == list(disks)

    eventually(done, seconds=SECONDS, what=f"a machine with {disks}")


def open_files(pid: int) -> set[str]:
    """The disks that a machine has open, as /proc says."""
    found = (Path(f"/proc/{pid}/fd") / each for each in os.listdir(f"/proc/{pid}/fd"))
    links = [os.readlink(each) for each in found if each.is_symlink()]
    return {Path(each).name.split("~")[0] for each in links if ".qcow2" in each}


def test_disks_come_grow_and_go_while_the_machine_runs(lab: Service) -> None:
    apply(lab, disk("root"), disk("data"), disk("cache"), target("vm", "root", "data"))
    until_ready(lab, "vm")
    pid = machine(lab)
    assert open_files(pid) == {"default.root", "default.data"}

    set_disks(lab, "root", "data", "cache")
    until_disks(lab, "root", "data", "cache")
    assert open_files(pid) == {"default.root", "default.data", "default.cache"}

    for name in ("root", "data", "cache"):
        patch = '{"spec":{"size":"16Mi"}}'
        lab.kubectl("patch", f"virtualdisk/{name}", "--type=merge", "-p", patch)
    for name in ("root", "data", "cache"):
        size = "jsonpath={.status.capacity}=16Mi"
        lab.kubectl("wait", f"virtualdisk/{name}", f"--for={size}", f"--timeout={SECONDS:.0f}s")

    # A disk that came while it ran goes, and one that it was started with.
    set_disks(lab, "root", "cache")
    until_disks(lab, "root", "cache")
    assert open_files(pid) == {"default.root", "default.cache"}
    set_disks(lab, "root")
    until_disks(lab, "root")
    assert open_files(pid) == {"default.root"}
    for name in ("data", "cache"):
        lab.kubectl("delete", "virtualdisk", name, f"--timeout={SECONDS:.0f}s")

    # All of it happened to one machine, which was never restarted.
    assert machine(lab) == pid
    assert status(lab, "vm")["starts"] == 1

    # Another boot disk needs a restart.
    apply(lab, disk("other"))
    set_disks(lab, "other")
    until_disks(lab, "other")
    assert machine(lab) != pid
    assert status(lab, "vm")["starts"] == 2


def service_disk(service: Service, name: str) -> Path:
    (found,) = (service.data / "disks").glob(f"default.{name}~*.qcow2")
    return found


def pool(name: str, **spec: Any) -> dict[str, Any]:
    made = target(name, "root")
    return {
        "apiVersion": GROUP,
        "kind": "VirtualTargetPool",
        "metadata": {"name": name},
        "spec": {
            "replicas": 2,
            "scaleDownPolicy": "Explicit",
            "template": {"metadata": {"labels": {"board": name}}, "spec": made["spec"]},
            "virtualDiskTemplates": [
                {"name": "root", "reclaim": {"onScaleDown": "Retain"}, "spec": {"size": "8Mi"}}
            ],
            **spec,
        },
    }


def until_pool(service: Service, name: str, **counts: int) -> None:
    def done() -> bool:
        found: Any = service.get("virtualtargetpool", name).get("status") or {}
        return all(found.get(key) == value for key, value in counts.items())

    eventually(done, seconds=SECONDS, what=f"{name} having {counts}")


def members(service: Service) -> dict[str, str]:
    """The members and their disks."""
    found: Any = service.get("virtualtargets")["items"]
    return {m["metadata"]["name"]: m["spec"]["disks"][0]["virtualDisk"] for m in found}


def from_python(service: Service, name: str) -> str:
    """What the program of the how-to prints, with another kubeconfig and member."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "lasting-pools.md").read_text()
    program = page.partition("```python remove.py\n")[2].partition("```")[0]
    for before, after in (
        ("lab/kubeconfig", str(service.data / "kubeconfig")),
        ("runners-1", name),
    ):
        assert before in program
        program = program.replace(before, after)
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_pool_grows_loses_a_member_by_name_and_reuses_its_disk(lab: Service) -> None:
    apply(lab, pool("runners"))
    until_pool(lab, "runners", readyReplicas=2, replicas=2)
    assert members(lab) == {"runners-0": "runners-root-0", "runners-1": "runners-root-1"}
    assert len(machines(lab)) == 2

    lab.kubectl("scale", "virtualtargetpool/runners", "--replicas=3")
    until_pool(lab, "runners", readyReplicas=3)
    refused = lab.kubectl("scale", "virtualtargetpool/runners", "--replicas=2", check=False)
    assert "removes members by name only" in refused.stderr

    path = (
        "/apis/subresources.virtualtarget.jumpstarter.dev/v1alpha1/namespaces/default"
        "/virtualtargetpools/runners/scaledownwith"
    )
    group = path.removeprefix("/apis/").partition("/")[0]
    assert f"{group}/v1alpha1" in lab.kubectl("api-versions").stdout
    body = '{"targets": ["runners-1"]}'
    for _ in range(2):
        lab.kubectl("create", "--raw", path, "-f", "-", input=body)
    until_pool(lab, "runners", readyReplicas=2, replicas=2)
    assert sorted(members(lab)) == ["runners-0", "runners-2"]
    assert service_disk(lab, "runners-root-1").exists()

    grown = pool("runners")["spec"]["virtualDiskTemplates"]
    grown[0]["spec"]["size"] = "16Mi"
    patch = yaml.safe_dump({"spec": {"virtualDiskTemplates": grown}})
    lab.kubectl("patch", "virtualtargetpool/runners", "--type=merge", "-p", patch)
    size = "jsonpath={.status.capacity}=16Mi"
    lab.kubectl("wait", "virtualdisk/runners-root-1", f"--for={size}", f"--timeout={SECONDS:.0f}s")

    lab.kubectl("scale", "virtualtargetpool/runners", "--replicas=3")
    until_pool(lab, "runners", readyReplicas=3)
    assert members(lab)["runners-3"] == "runners-root-1"

    patch = '{"spec":{"template":{"metadata":{"labels":{"board":"other"}}}}}'
    lab.kubectl("patch", "virtualtargetpool/runners", "--type=merge", "-p", patch)
    until_pool(lab, "runners", updatedReplicas=3)
    lab.bullpen("rollback", "virtualtargetpool/runners")

    def labelled() -> int:
        found = lab.kubectl("get", "exporters", "-l", "board=runners", "-o", "name").stdout
        return len(found.split())

    eventually(lambda: labelled() == 3, seconds=SECONDS, what="the labels of before")
    assert lab.bullpen("rollback", "virtualtargetpool/runners", "--to", "0", check=False).returncode
    said = lab.bullpen("scale-down", "virtualtargetpool/runners", "--with", "runners-0,runners-3")
    assert "runners-0 leaves" in said.stdout
    until_pool(lab, "runners", readyReplicas=1, replicas=1)
    assert sorted(members(lab)) == ["runners-2"]
    assert len(machines(lab)) == 1

    assert "leaving: runners-2; staying: 0" in from_python(lab, "runners-2")
    assert "leaving: none; staying: 0" in from_python(lab, "runners-2")
    until_pool(lab, "runners", replicas=0)
    assert not machines(lab)

    lab.kubectl("delete", "virtualtargetpool", "runners", f"--timeout={SECONDS:.0f}s")
    eventually(lambda: not machines(lab), seconds=SECONDS)
    eventually(lambda: not list((lab.data / "disks").iterdir()), seconds=SECONDS)
