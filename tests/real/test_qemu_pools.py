"""Pools of real QEMU targets, leased by the real client."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.qemu_pools import (
    CLASS,
    EXAMPLES,
    apply_set,
    condition,
    directories,
    names,
    shell,
    status,
    until,
)
from support.real_service import BIN, Service, eventually, free_port_base, running_service

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("pools")) as service:
        service.kubectl("apply", "-f", "-", input=yaml.safe_dump(CLASS))
        yield service


def test_a_lease_boots_a_board_nobody_used_before(lab: Service) -> None:
    apply_set(lab, "warm", minAvailableReplicas=2)
    until(lab, "warm", availableReplicas=2)
    before = names(lab, "warm")
    process = shell(lab, "warm", str(BIN / "python"), str(EXAMPLES / "console.py"))
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "U-Boot 20" in output
    assert "U-Boot answered." in output
    until(lab, "warm", availableReplicas=2, replicas=2)
    after = names(lab, "warm")
    assert len(set(before) - set(after)) == 1, "the used one must be gone"
    assert lab.bullpen("logs", after[0]).stdout
    lab.kubectl("delete", "exporterset", "warm")
    eventually(lambda: not names(lab, "warm"), seconds=120)
    eventually(lambda: not directories(lab), seconds=120, what="every directory gone")


def test_from_zero_to_the_ceiling_and_back_to_zero(lab: Service, tmp_path: Path) -> None:
    apply_set(lab, "burst", maxReplicas=3)
    until(lab, "burst", replicas=0)
    seen = tmp_path / "seen"
    held = f"until [ -e {seen} ]; do sleep 0.2; done"
    shells = [shell(lab, "burst", "sh", "-c", held) for _ in range(4)]
    try:
        until(lab, "burst", leasedReplicas=3, replicas=3)
        eventually(
            lambda: condition(lab, "burst", "ScalingLimited")["status"] == "True",
            what="the fourth client waiting",
        )
        waiting = lab.bullpen("status", "-o", "json").stdout
        assert "burst" in waiting
    finally:
        seen.touch()
        codes = [process.wait(120) for process in shells]
        for process in shells:
            assert process.stdout is not None
            process.stdout.close()
    assert codes == [0, 0, 0, 0]
    until(lab, "burst", replicas=0)
    assert not directories(lab)
    lab.kubectl("delete", "exporterset", "burst")


def test_kubectl_scale_moves_the_ceiling(lab: Service) -> None:
    apply_set(lab, "scaled", minReplicas=0, minAvailableReplicas=2, maxReplicas=2)
    until(lab, "scaled", availableReplicas=2)
    lab.kubectl("scale", "exporterset/scaled", "--replicas=3")
    lab.kubectl(
        "patch", "exporterset", "scaled", "--type=merge", "-p",
        '{"spec":{"minAvailableReplicas":1,"maxReplicas":1}}',
    )  # fmt: skip
    until(lab, "scaled", replicas=1, availableReplicas=1)
    lab.kubectl("delete", "exporterset", "scaled")


def test_a_killed_member_is_replaced(lab: Service) -> None:
    apply_set(lab, "killed", minAvailableReplicas=1)
    until(lab, "killed", availableReplicas=1)
    (victim,) = names(lab, "killed")
    state = lab.data / "instances" / f"default.{victim}" / "process.json"
    pid = yaml.safe_load(state.read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    eventually(
        lambda: names(lab, "killed") not in ([victim], []), seconds=120, what="a replacement"
    )
    until(lab, "killed", availableReplicas=1)
    lab.kubectl("delete", "exporterset", "killed")


def test_a_missing_class_is_said_and_mended_when_it_comes(lab: Service) -> None:
    apply_set(lab, "classless", minAvailableReplicas=1, virtualTargetClassName="later")
    eventually(
        lambda: "later" in str(status(lab, "classless").get("conditions")), what="the condition"
    )
    assert names(lab, "classless") == []
    later = {**CLASS, "metadata": {"name": "later"}}
    lab.kubectl("apply", "-f", "-", input=yaml.safe_dump(later))
    until(lab, "classless", availableReplicas=1)
    lab.kubectl("delete", "exporterset", "classless")


def test_bad_parameters_name_their_path_and_nothing_churns(lab: Service) -> None:
    apply_set(lab, "wrong", minAvailableReplicas=1, parameters={"resources": {"cpu": 0}})
    eventually(
        lambda: "resources.cpu" in str(status(lab, "wrong").get("conditions")),
        what="the condition",
    )
    time.sleep(1)
    assert names(lab, "wrong") == []
    lab.kubectl("delete", "exporterset", "wrong")


def test_a_killed_service_finds_its_members_again(tmp_path: Path) -> None:
    service = Service(tmp_path / "data", "--port-base", str(free_port_base()))
    service.start()
    try:
        service.kubectl("apply", "-f", "-", input=yaml.safe_dump(CLASS))
        apply_set(service, "kept", minAvailableReplicas=2)
        until(service, "kept", availableReplicas=2)
        before = names(service, "kept")
        service.stop(signal.SIGKILL)
        service.start()
        until(service, "kept", availableReplicas=2, replicas=2)
        assert names(service, "kept") == before, "what still runs is adopted"
    finally:
        assert service.stop() == 0
    assert not directories(service), "a clean stop leaves nothing running"
