"""The conformance checklist, point 8: the service is killed and comes back, nothing is lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.lab_helpers import Lab, read_until
from support.real_service import Service, eventually, free_port_base

pytestmark = pytest.mark.real


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A service that comes back on the same ports."""
    service = Service(tmp_path / "data", "--port-base", str(free_port_base()))
    service.start()
    try:
        yield Lab(service)
    finally:
        if service.process is not None:
            service.stop()


def restart(service: Service) -> float:
    """Kill the service as a power cut would and start it again; returns the seconds away."""
    start = time.monotonic()
    service.stop(signal.SIGKILL)
    service.start()
    return time.monotonic() - start


@pytest.mark.quiet
def test_08_a_killed_service_comes_back_with_its_leases_and_exporters(lab: Lab) -> None:
    alice = lab.client("alice")
    held, idle = (lab.exporter(name, {"board": name}) for name in ("held", "idle"))
    script = "echo =in=; read go; j power on && echo =again="
    with (
        lab.running(held, idle) as processes,
        lab.open_shell(alice, "-l", "board=held", "--", "sh", "-c", script) as shell,
    ):
        read_until(shell, "=in=")
        (before,) = lab.open_leases("alice")
        away = restart(lab.service)
        lab.service.await_connection(shell)
        assert shell.stdin is not None
        shell.stdin.write("go\n")
        shell.stdin.close()
        output = read_until(shell, "=again=")
        assert shell.wait(120) == 0
        assert [process.poll() for process in processes] == [None, None]
        assert "Starting new lease" in held.with_suffix(".log").read_text()
        assert held.with_suffix(".log").read_text().count("Registering exporter") == 1
        eventually(lambda: lab.status("held") == "Available", what="it being free")
        done = lab.jmp(alice, "shell", "-l", "board=idle", "--", "j", "power", "on")
        assert done.returncode == 0
    assert "Error:" not in output
    name = before["metadata"]["name"]
    after = lab.get("leases", name)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["epoch"] == before["status"]["epoch"], "it was given out only once"
    assert "ExporterOffline" not in lab.events("idle")
    print(f"away for {away:.2f} s")


def test_08_a_lease_that_ends_while_the_service_is_away_ends_when_it_is_back(lab: Lab) -> None:
    """Nothing is late by more than the absence, and the exporter serves the next one."""
    alice = lab.client("alice")
    board = lab.exporter("board", {"board": "b"})
    with lab.running(board):
        made = lab.jmp(
            *(alice, "create", "lease", "-l", "board=b", "--duration", "3s", "-o", "name")
        )
        lease = made.stdout.strip().rpartition("/")[2]
        queued = "queued"
        lab.create(
            "leases",
            queued,
            spec={
                "clientRef": {"name": "alice"},
                "selector": {"matchLabels": {"board": "b"}},
                "duration": "1m",
            },
        )
        lab.service.stop(signal.SIGKILL)
        time.sleep(1.5)
        lab.service.start()
        eventually(lambda: lab.get("leases", lease)["status"]["ended"], what="the first ending")
        eventually(
            lambda: lab.get("leases", queued)["status"].get("exporterRef"),
            what="the second getting the exporter",
        )
        # The exporter held the first lease across the restart; it must have noticed the change.
        done = lab.jmp(alice, "shell", "--lease", queued, "--", "j", "power", "on")
        assert done.returncode == 0
    first, second = (lab.get("leases", name)["status"] for name in (lease, queued))
    assert second["epoch"] > first["epoch"]
