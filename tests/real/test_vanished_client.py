"""A client that is killed releases nothing; an idle time-out frees its target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.lab_helpers import Lab, read_until
from support.real_service import eventually, kill_family, running_service

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

END_SECONDS = 180.0
"""The time-out is 10 s; the machine may be busy."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    config = tmp_path / "config.yaml"
    config.write_text("leases: {idleTimeout: 10s}\n")
    with running_service(tmp_path, "--config", str(config)) as service:
        yield Lab(service)


def test_the_lease_of_a_killed_shell_ends_after_the_idle_timeout(lab: Lab) -> None:
    alice = lab.client("alice")
    with (
        lab.running(lab.exporter("board", {"board": "b"})),
        lab.open_shell(alice, "-l", "board=b", "--", "sh", "-c", "echo =in=; read go") as shell,
    ):
        read_until(shell, "=in=")
        (lease,) = lab.open_leases("alice")
        name = lease["metadata"]["name"]
        assert lease["status"]["idleTimeout"] == "10s"
        eventually(lambda: lab.get("leases", name)["status"].get("sessions"), what="a session")
        kill_family(shell)
        eventually(
            lambda: lab.get("leases", name)["status"]["ended"],
            seconds=END_SECONDS,
            what="its lease ending",
        )
        assert lab.condition("leases", name, "Ready")["reason"] == "Idle"
        again = lab.jmp(alice, "shell", "-l", "board=b", "--", "j", "power", "on")
        assert again.returncode == 0, "the target is free"
