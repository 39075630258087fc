"""The conformance checklist, point 5: hooks around a lease, and what their failures lead to."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.lab_helpers import Lab, read_until, warnings_in
from support.real_service import Service, eventually

pytestmark = pytest.mark.real

FAIL = "echo no; exit 3"


@pytest.fixture(scope="module")
def lab(service: Service) -> Lab:
    return Lab(service)


@pytest.fixture(scope="module")
def alice(lab: Lab) -> Path:
    return lab.client("alice")


@pytest.fixture(scope="module")
def diary(service: Service) -> Path:
    """Where hooks and commands write what they do, in the order they do it."""
    path = service.home / "diary"
    path.touch()
    return path


@pytest.fixture(scope="module")
def boards(lab: Lab, diary: Path) -> Iterator[dict[str, subprocess.Popen[str]]]:
    def note(word: str) -> str:
        return f'echo "{word} $LEASE_NAME $CLIENT_NAME" >> {diary}'

    hooks: dict[str, dict[str, object]] = {
        "ordered": {
            "beforeLease": {"script": f"j power on && {note('before')}"},
            "afterLease": {"script": f"j power off && {note('after')}"},
        },
        "warning": {
            "beforeLease": {"script": FAIL, "onFailure": "warn"},
            "afterLease": {"script": FAIL, "onFailure": "warn"},
        },
        "ending": {"beforeLease": {"script": FAIL, "onFailure": "endLease"}},
        "quitting": {"beforeLease": {"script": FAIL, "onFailure": "exit"}},
        "trailing": {"afterLease": {"script": FAIL, "onFailure": "endLease"}},
        "lengthy": {"beforeLease": {"script": "sleep 6", "timeout": 30}},
    }
    configs = [lab.exporter(name, {"board": name}, hooks=hook) for name, hook in hooks.items()]
    with lab.running(*configs) as started:
        yield dict(zip(hooks, started, strict=True))


def shell(lab: Lab, client: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return lab.jmp(client, "shell", *arguments, check=False)


def last_lease(lab: Lab, board: str) -> dict[str, object]:
    """The newest lease of a board; names sort by time."""
    found = [
        lease
        for lease in lab.get("leases")["items"]
        if lease["status"].get("exporterRef", {}).get("name") == board
    ]
    return dict(max(found, key=lambda lease: lease["metadata"]["name"]))


def free_again(lab: Lab, board: str) -> None:
    def status() -> dict[str, object]:
        return dict(lab.get("exporters", board)["status"])

    eventually(
        lambda: status()["exporterStatus"] == "Available" and "leaseRef" not in status(),
        seconds=120,
        what=f"{board} being free again",
    )


def test_05_hooks_run_before_and_after_the_command(
    lab: Lab, alice: Path, boards: dict[str, subprocess.Popen[str]], diary: Path
) -> None:
    command = f'echo "during $JMP_LEASE" >> {diary}'
    done = shell(lab, alice, "-l", "board=ordered", "--", "sh", "-c", command)
    assert done.returncode == 0, done.stderr
    free_again(lab, "ordered")
    before, during, after = [line.split() for line in diary.read_text().splitlines()]
    lease = during[1]
    assert before == ["before", lease, "alice"]
    assert after == ["after", lease, "alice"]
    assert lab.get("leases", lease)["status"]["ended"] is True


def test_05_a_failing_hook_that_only_warns_warns(
    lab: Lab, alice: Path, boards: dict[str, subprocess.Popen[str]]
) -> None:
    done = shell(lab, alice, "-l", "board=warning", "--", "echo", "=worked=")
    assert done.returncode == 0
    assert "=worked=" in done.stdout
    assert done.stdout.count("Warning:") == 2, "one for each hook"
    free_again(lab, "warning")


def test_05_a_failing_first_hook_ends_the_lease_and_frees_the_exporter(
    lab: Lab, alice: Path, boards: dict[str, subprocess.Popen[str]]
) -> None:
    done = shell(lab, alice, "-l", "board=ending", "--", "echo", "=worked=")
    assert done.returncode
    assert "=worked=" not in done.stdout
    assert "beforeLease hook" in done.stderr
    free_again(lab, "ending")
    assert last_lease(lab, "ending")["status"]["ended"] is True  # type: ignore[index]


def test_05_a_failing_first_hook_that_exits_takes_its_exporter_down(
    lab: Lab, alice: Path, boards: dict[str, subprocess.Popen[str]]
) -> None:
    """The exporter says so and stops once its lease is over, when its user gives up.

    The client of 0.9.0 goes on waiting for five minutes by itself.
    """
    with lab.open_shell(alice, "-l", "board=quitting", "--", "echo", "=worked=") as waiting:
        output = read_until(waiting, "OFFLINE")
        eventually(lambda: lab.status("quitting") == "Offline", what="it saying so")
        waiting.send_signal(signal.SIGINT)
        assert waiting.stdout is not None
        output += waiting.stdout.read()
        assert waiting.wait(120)
    assert "=worked=" not in output
    boards["quitting"].wait(120)
    assert lab.status("quitting") == "Offline"
    assert lab.condition("exporters", "quitting", "Registered")["status"] == "False"
    assert last_lease(lab, "quitting")["status"]["ended"] is True  # type: ignore[index]


def test_05_a_failing_last_hook_is_told_and_frees_the_exporter(
    lab: Lab, alice: Path, boards: dict[str, subprocess.Popen[str]]
) -> None:
    done = shell(lab, alice, "-l", "board=trailing", "--", "echo", "=worked=")
    assert "=worked=" in done.stdout
    assert done.returncode
    assert "afterLease hook failed" in done.stderr
    free_again(lab, "trailing")


def test_05_a_hook_longer_than_the_lease_is_waited_for(
    lab: Lab, alice: Path, boards: dict[str, subprocess.Popen[str]]
) -> None:
    """The lease is over at its time; the exporter is given out again only after its hook."""
    start = time.monotonic()
    done = shell(
        *(lab, alice, "-l", "board=lengthy", "--duration", "2s", "--retry-timeout", "0"),
        *("--", "echo", "=worked="),
    )
    assert "=worked=" not in done.stdout
    assert done.returncode
    assert "Error: " in done.stderr, "jmp says in a sentence that there was no shell"
    ended = last_lease(lab, "lengthy")
    assert ended["status"]["conditions"][-1]["reason"] == "Expired"  # type: ignore[index]
    name = "queued-behind-a-hook"
    lab.create(
        "leases",
        name,
        spec={
            "clientRef": {"name": "alice"},
            "selector": {"matchLabels": {"board": "lengthy"}},
            "duration": "1m",
        },
    )
    eventually(
        lambda: lab.get("leases", name)["status"].get("exporterRef"),
        seconds=120,
        what="the next lease getting it",
    )
    assert time.monotonic() - start > 6, "it was given out while its hook ran"
    lab.patch("leases", name, {"spec": {"release": True}})


def test_05_a_lease_nobody_used_ends_and_frees_the_exporter(
    lab: Lab, alice: Path, boards: dict[str, subprocess.Popen[str]], diary: Path
) -> None:
    before = diary.read_text().count("before ")
    made = lab.jmp(
        *(alice, "create", "lease", "-l", "board=ordered", "--duration", "4s", "-o", "name")
    )
    lease = made.stdout.strip().rpartition("/")[2]
    eventually(
        lambda: lab.get("leases", lease)["status"]["ended"], seconds=15, what="the lease ending"
    )
    free_again(lab, "ordered")
    assert diary.read_text().count("before ") == before + 1
    assert diary.read_text().count("after ") == before + 1
    assert not warnings_in(shell(lab, alice, "-l", "board=ordered", "--", "true").stdout)
