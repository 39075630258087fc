"""Programs that die in the middle of a lease: nothing is lost, nothing stays taken for ever.

The service's own death is point 8 of the conformance checklist, a killed exporter that
comes back within a shell is point 9.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.lab_helpers import Lab, read_until
from support.real_service import eventually, kill_family, running_service

pytestmark = pytest.mark.real

CONFIG = """
exporters: {stuckAfter: 2s}
leases: {retention: 12s}
"""

OFFLINE_SECONDS_MAX = 5.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("days")
    config = directory / "bullpen.yaml"
    config.write_text(CONFIG)
    with running_service(directory, "--config", str(config)) as service:
        yield Lab(service)


@pytest.fixture(scope="module")
def alice(lab: Lab) -> Path:
    return lab.client("alice")


@pytest.fixture(scope="module")
def boards(lab: Lab) -> Iterator[None]:
    slow = {"afterLease": {"script": "sleep 6", "timeout": 30}}
    with lab.running(
        lab.exporter("left", {"board": "left"}),
        lab.exporter("slow", {"board": "slow"}, hooks=slow),
    ):
        yield


def test_a_client_that_vanishes_leaves_a_lease_that_can_be_given_back(
    lab: Lab, alice: Path, boards: None
) -> None:
    with lab.open_shell(alice, "-l", "board=left", "--", "sh", "-c", "echo =in=; cat") as shell:
        read_until(shell, "=in=")
        os.killpg(shell.pid, signal.SIGKILL)
    (lease,) = lab.open_leases("alice")
    name = lease["metadata"]["name"]
    listed = lab.jmp(alice, "get", "leases", "-o", "name").stdout
    assert name in listed
    # The lease is still good: whoever has its name can go on with it.
    lab.jmp(alice, "shell", "--lease", name, "--", "j", "power", "on")
    lab.jmp(alice, "delete", "leases", name)
    eventually(lambda: lab.status("left") == "Available", what="the exporter being free")
    sessions = lab.get("leases", name)["status"]["sessions"]
    assert all("endTime" in session for session in sessions), "no session goes on"


def test_a_client_that_vanishes_for_good_loses_its_lease_at_its_end(
    lab: Lab, alice: Path, boards: None
) -> None:
    with lab.open_shell(
        alice, "-l", "board=left", "--duration", "5s", "--", "sh", "-c", "echo =in=; cat"
    ) as shell:
        read_until(shell, "=in=")
        (lease,) = lab.open_leases("alice")
        os.killpg(shell.pid, signal.SIGKILL)
    name = lease["metadata"]["name"]
    eventually(lambda: lab.get("leases", name)["status"]["ended"], what="the lease ending")
    assert lab.get("leases", name)["status"]["conditions"][-1]["reason"] == "Expired"
    eventually(lambda: lab.status("left") == "Available", what="the exporter being free")


def test_a_dead_exporter_is_known_to_be_and_its_lease_waits_for_it(lab: Lab, alice: Path) -> None:
    config = lab.exporter("dying", {"board": "dying"})
    with lab.running(config) as (process,):
        made = lab.jmp(
            *(alice, "create", "lease", "-l", "board=dying", "--duration", "5m", "-o", "name")
        )
        lease = made.stdout.strip().rpartition("/")[2]
        eventually(lambda: lab.status("dying") == "LeaseReady", what="the lease having begun")
        start = time.monotonic()
        kill_family(process)
        eventually(
            lambda: lab.condition("exporters", "dying", "Online")["status"] == "False",
            seconds=OFFLINE_SECONDS_MAX,
            what="it being known as offline",
        )
        print(f"offline after {time.monotonic() - start:.1f} s")
    assert lab.status("dying") == "Offline"
    assert lab.get("leases", lease)["status"]["ended"] is False
    eventually(lambda: "ExporterOffline" in lab.events("dying"), what="an event")
    # The next one is told what it waits for.
    lab.create(
        "leases",
        "behind",
        spec={
            "clientRef": {"name": "alice"},
            "selector": {"matchLabels": {"board": "dying"}},
            "duration": "1m",
        },
    )
    eventually(lambda: lab.condition("leases", "behind", "Pending"), what="a word about it")
    pending = lab.condition("leases", "behind", "Pending")
    assert pending["reason"] == "Offline"
    assert pending["message"] == (
        "position 1 in the queue: 1 exporter matches, but it is not online"
    )
    with lab.service.exporter(config, wait=False):
        done = lab.jmp(alice, "shell", "--lease", lease, "--", "j", "power", "on")
        assert done.returncode == 0
        lab.jmp(alice, "delete", "leases", lease)
        eventually(
            lambda: lab.get("leases", "behind")["status"].get("exporterRef"),
            what="the next one getting it",
        )


def test_an_exporter_stopped_in_order_is_offline_at_once_and_takes_no_lease(
    lab: Lab, alice: Path
) -> None:
    config = lab.exporter("orderly", {"board": "orderly"})
    with lab.running(config) as (process,):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(120)
    assert lab.status("orderly") == "Offline"
    assert lab.condition("exporters", "orderly", "Online")["status"] == "False"
    assert lab.condition("exporters", "orderly", "Registered")["status"] == "False"
    with lab.running(config):
        assert lab.condition("exporters", "orderly", "Registered")["status"] == "True"


def test_an_exporter_that_does_not_become_available_again_is_reported(
    lab: Lab, alice: Path, boards: None
) -> None:
    """Here because its hook takes longer than anybody should wait without being told."""
    made = lab.jmp(
        *(alice, "create", "lease", "-l", "board=slow", "--duration", "5m", "-o", "name")
    )
    lease = made.stdout.strip().rpartition("/")[2]
    eventually(lambda: lab.status("slow") == "LeaseReady", what="the lease having begun")
    assert not lab.condition("exporters", "slow", "Stuck")
    lab.jmp(alice, "delete", "leases", lease)
    eventually(
        lambda: lab.condition("exporters", "slow", "Stuck").get("status") == "True",
        what="it being reported",
    )
    stuck = lab.condition("exporters", "slow", "Stuck")
    assert stuck["reason"] == "NotAvailable"
    assert "reports AfterLeaseHook since its lease ended" in stuck["message"]
    eventually(lambda: "ExporterStuck" in lab.events("slow"), what="an event")
    eventually(
        lambda: lab.condition("exporters", "slow", "Stuck")["status"] == "False",
        seconds=15,
        what="it being well again",
    )
    assert lab.status("slow") == "Available"


def test_ended_leases_are_forgotten_after_their_time(lab: Lab, alice: Path) -> None:
    """Last in the file: it waits for what the other tests left behind."""
    lab.create(
        "leases",
        "forgettable",
        spec={
            "clientRef": {"name": "alice"},
            "selector": {"matchLabels": {"board": "none"}},
            "duration": "1m",
        },
    )
    eventually(lambda: lab.get("leases", "forgettable")["status"]["ended"], what="its refusal")
    ended = lab.get("leases", "forgettable")
    assert ended["metadata"]["labels"]["jumpstarter.dev/lease-ended"] == "true"
    assert ended["status"]["conditions"][-1]["reason"] == "NoAccess"

    def names() -> set[str]:
        return {lease["metadata"]["name"] for lease in lab.get("leases")["items"]}

    assert "forgettable" in names()
    eventually(lambda: "forgettable" not in names(), seconds=120, what="it being forgotten")
