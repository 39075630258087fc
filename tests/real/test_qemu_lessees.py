"""What lessees of real QEMU boards may count on, and what happens to boards in a pool."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from support.qemu_pools import (
    apply_class,
    apply_set,
    condition,
    directories,
    names,
    shell,
    status,
    until,
)
from support.real_service import BIN, Service, eventually, kill_family, running_service

pytestmark = pytest.mark.real

CONFIG = {"pools": {"bootTimeout": "8s", "instancesMax": 4}}
MIB = 1 << 20
DISK = {"disks": [{"name": "root", "size": "8Mi"}]}
STORY = """
import sys
from jumpstarter.utils.env import env

PROMPT, ADDRESS = "=> ", "${kernel_addr_r}"

def told(console, command):
    console.sendline(command)
    console.expect(PROMPT, timeout=120)
    return console.before.decode()

with env() as target:
    if len(sys.argv) > 1:
        target.qemu.flasher.flash(sys.argv[1], target="root")
    target.power.on()
    with target.serial.pexpect() as console:
        console.expect("autoboot", timeout=120)
        console.send("\\n")
        console.expect(PROMPT, timeout=120)
        found = told(console, f"virtio scan; virtio read {ADDRESS} 0 1; md.b {ADDRESS} 8")
        print("the disk says", "flashed!" if "flashed!" in found else "", "used" in found)
        print(found)
        told(console, f"mw.l {ADDRESS} 64657375 4; virtio write {ADDRESS} 0 1")
        print(told(console, f"mw.l {ADDRESS} 0 4; virtio read {ADDRESS} 0 1; md.b {ADDRESS} 8"))
"""
"""Perhaps flash the disk, boot, read its beginning, and leave a mark there."""

FRESH, FLASHED, MARK = "the disk says  False", "the disk says flashed! False", "usedused"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("lessees")
    config = directory / "config.yaml"
    config.write_text(yaml.safe_dump(CONFIG))
    with running_service(directory, "--config", str(config)) as service:
        apply_class(service, "plain", parameters=DISK)
        yield service


@contextlib.contextmanager
def pool(service: Service, name: str, **spec: Any) -> Iterator[None]:
    """A pool that is deleted afterwards; nothing of it may be left."""
    apply_set(service, name, **{"virtualTargetClassName": "plain", **spec})
    try:
        yield
    finally:
        service.kubectl("delete", "exporterset", name, "--wait=false")
    eventually(lambda: not names(service, name), seconds=120, what=f"the members of {name} gone")
    eventually(lambda: not directories(service), seconds=120, what="every directory gone")


def tell(service: Service, name: str, directory: Path, *arguments: str) -> str:
    """Lease a board, live the story with it, give it back; what was printed."""
    script = directory / "story.py"
    script.write_text(STORY)
    process = shell(service, name, str(BIN / "python"), str(script), *arguments)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def machines(service: Service) -> list[psutil.Process]:
    """Every QEMU that this service's exporters run."""
    assert service.process is not None
    family = psutil.Process(service.process.pid).children(recursive=True)
    return [process for process in family if process.name().startswith("qemu-system")]


def member_pid(service: Service, name: str) -> int:
    state = service.data / "instances" / f"default.{name}" / "process.json"
    return int(yaml.safe_load(state.read_text())["pid"])


def leases(service: Service, exporter: str) -> list[Any]:
    found: Any = service.get("leases")["items"]
    return [x for x in found if x["status"].get("exporterRef", {}).get("name") == exporter]


def finish(process: subprocess.Popen[str], seconds: float = 40) -> int:
    process.communicate(timeout=seconds)
    return process.returncode


def hang_up(process: subprocess.Popen[str]) -> None:
    """A client that ends without a word."""
    kill_family(process)
    process.communicate()


def test_what_one_lessee_flashed_and_wrote_the_next_does_not_see(
    lab: Service, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"flashed!" + bytes(MIB - 8))
    with pool(lab, "fresh", minAvailableReplicas=1):
        first = tell(lab, "fresh", tmp_path, str(image))
        assert FLASHED in first
        assert MARK in first, "what it wrote, it can read"
        assert FRESH in tell(lab, "fresh", tmp_path)


def test_gap_06_a_board_that_is_reused_is_reset_and_serves_again(
    lab: Service, tmp_path: Path
) -> None:
    with pool(lab, "reused", minAvailableReplicas=1, maxReplicas=1, recycleStrategy="InPlaceReuse"):
        until(lab, "reused", availableReplicas=1)
        before = names(lab, "reused")
        assert MARK in tell(lab, "reused", tmp_path)
        assert FRESH in tell(lab, "reused", tmp_path)
        assert names(lab, "reused") == before
        assert status(lab, "reused")["created"] == 1


def test_an_edited_class_replaces_idle_boards_and_leaves_the_leased_one(lab: Service) -> None:
    apply_class(lab, "edited")
    with pool(lab, "edited", virtualTargetClassName="edited", minAvailableReplicas=1):
        holding = shell(lab, "edited", "sleep", "60")
        until(lab, "edited", leasedReplicas=1, availableReplicas=1)
        leased = [n for n in names(lab, "edited") if leases(lab, n)]
        old = set(names(lab, "edited"))
        apply_class(lab, "edited", parameters={"resources": {"cpu": 1, "memory": "160Mi"}})
        eventually(lambda: len(set(names(lab, "edited")) & old) == 1, seconds=120, what="a rollout")
        assert set(names(lab, "edited")) & old == set(leased), "who has one keeps it"
        until(lab, "edited", availableReplicas=1)
        hang_up(holding)


def test_a_board_that_is_killed_while_leased_is_replaced_and_its_lease_ends(lab: Service) -> None:
    with pool(lab, "killed", minAvailableReplicas=1):
        holding = shell(lab, "killed", "sleep", "60")
        until(lab, "killed", leasedReplicas=1, availableReplicas=1)
        (victim,) = [n for n in names(lab, "killed") if leases(lab, n)]
        os.kill(member_pid(lab, victim), signal.SIGKILL)
        eventually(lambda: victim not in names(lab, "killed"), seconds=120, what="its end")
        eventually(lambda: leases(lab, victim)[0]["status"]["ended"], what="its lease ending")
        until(lab, "killed", availableReplicas=1, leasedReplicas=0)
        hang_up(holding)


def test_a_set_that_is_deleted_takes_everything_with_it(lab: Service) -> None:
    with pool(lab, "deleted", minReplicas=2, minAvailableReplicas=1):
        booted = "j power on && echo booted && sleep 60"
        holding = shell(lab, "deleted", "sh", "-c", booted)
        eventually(lambda: machines(lab), seconds=120, what="a machine running")
        (machine,) = machines(lab)
        lab.kubectl("delete", "exporterset", "deleted", "--wait=false")
        eventually(lambda: not names(lab, "deleted"), seconds=120)
        eventually(lambda: not directories(lab) and not machine.is_running(), seconds=120)
        hang_up(holding)
        apply_set(lab, "deleted")


def test_retained_disks_and_logs_are_kept_and_listed(lab: Service) -> None:
    apply_class(lab, "retaining", parameters=DISK, reclaimPolicy="Retain")
    with pool(lab, "retaining", virtualTargetClassName="retaining", maxReplicas=1):
        assert finish(shell(lab, "retaining", "j", "power", "on")) == 0
    (found,) = json.loads(lab.bullpen("retained", "list", "-o", "json").stdout)["retained"]
    kept = Path(found["path"])
    assert found["bytes"] > 0
    assert kept.name.startswith("default.retaining-0-")
    assert list(kept.rglob("root.overlay")), "its disk"
    assert "Registering" in (kept / "log").read_text()
    assert found["name"] in lab.bullpen("retained", "delete", found["name"]).stdout
    assert not kept.exists()


def test_a_class_that_waits_for_the_first_consumer_starts_nothing_before(lab: Service) -> None:
    apply_class(lab, "late", bindingMode="WaitForFirstConsumer")
    with pool(lab, "late", virtualTargetClassName="late", minReplicas=1, minAvailableReplicas=1):
        eventually(lambda: condition(lab, "late", "Available").get("reason") == "OnDemand")
        assert not names(lab, "late")
        assert finish(shell(lab, "late", "j", "power", "on")) == 0
        until(lab, "late", replicas=0, created=1)


def test_what_never_boots_is_given_up_and_said(lab: Service) -> None:
    """A server of firmware that accepts and then says nothing is the usual way to hang."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        firmware = {
            "url": f"http://127.0.0.1:{silent.getsockname()[1]}/u-boot.bin",
            "digest": f"sha256:{'0' * 64}",
        }
        apply_class(lab, "hanging", parameters={"firmware": firmware})
        with pool(lab, "hanging", virtualTargetClassName="hanging", minAvailableReplicas=1):
            eventually(
                lambda: condition(lab, "hanging", "Degraded").get("status") == "True",
                seconds=120,
                what="giving up",
            )
            said = condition(lab, "hanging", "Degraded")["message"]
            assert "BootTimeout: not registered within 8 s" in said


def test_a_full_host_holds_instead_of_churning_and_goes_on_when_there_is_room(
    lab: Service,
) -> None:
    with pool(lab, "full", minReplicas=5, maxReplicas=6):
        until(lab, "full", readyReplicas=4, replicas=5)
        eventually(lambda: condition(lab, "full", "Degraded").get("reason") == "NoCapacity")
        assert "4 of at most 4 instances" in condition(lab, "full", "Degraded")["message"]
        assert finish(shell(lab, "full", "j", "power", "on")) == 0
        until(lab, "full", readyReplicas=4)
        assert status(lab, "full")["created"] <= 6, "held, not made again and again"
