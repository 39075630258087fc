"""Control groups that systemd delegates to the service, told apart from all others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bullpen.placements.local import cgroups

MEMBERSHIP = "0::/system.slice/bullpen.service\n"


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """The group of a service as systemd leaves it: processes, and no controllers below."""
    place = tmp_path / "system.slice" / "bullpen.service"
    place.mkdir(parents=True)
    (place / cgroups.PROCESSES).write_text("4711\n")
    (place / cgroups.SUBTREE).write_text("")
    return place


def mounts(tmp_path: Path) -> str:
    return f"41 31 0:38 / {tmp_path} rw,relatime - cgroup2 cgroup2 rw\n"


def test_in_a_delegated_cgroup_the_service_moves_down_and_turns_controllers_on(
    group: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not every file system for temporary files has extended attributes; that of groups has.
    marks = {(str(group), "user.delegate"): b"1"}
    monkeypatch.setattr(os, "getxattr", lambda path, name: marks.get((str(path), name), b""))
    cgroups.settle(mounts=mounts(tmp_path), membership=MEMBERSHIP)
    assert (group / "service" / cgroups.PROCESSES).read_text() == "4711"
    assert (group / cgroups.SUBTREE).read_text() == "+memory +pids +cpu"


def test_a_cgroup_that_was_not_delegated_is_left_alone(group: Path, tmp_path: Path) -> None:
    cgroups.settle(mounts=mounts(tmp_path), membership=MEMBERSHIP)
    assert not (group / "service").exists()
    assert (group / cgroups.SUBTREE).read_text() == ""


def test_groups_of_instances_are_beside_that_of_the_service_in_a_delegated_cgroup(
    group: Path, tmp_path: Path
) -> None:
    (group / cgroups.SUBTREE).write_text("cpu memory pids\n")
    found = cgroups.find(
        mounts=mounts(tmp_path), membership="0::/system.slice/bullpen.service/service\n"
    )
    assert found == cgroups.Trees(version=2, places=dict.fromkeys(cgroups.CONTROLLERS, group))
