"""``bullpen shell``, ``run`` and ``console`` with a real pool of U-Boot boards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from support.qemu_pools import CLASS, apply_set, until
from support.real_service import BIN, Service, eventually, running_service

pytestmark = pytest.mark.real

BOARD = ("-l", "board=desk")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("shells")) as service:
        service.kubectl("apply", "-f", "-", input=yaml.safe_dump(CLASS))
        apply_set(service, "desk", minAvailableReplicas=1, maxReplicas=1)
        until(service, "desk", availableReplicas=1)
        yield service


def started(lab: Service, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(BIN / "bullpen"), *arguments],
        env={**lab.environment, "BULLPEN_DATA": str(lab.data)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def open_leases(lab: Service) -> list[dict[str, Any]]:
    items: Any = lab.get("leases")["items"]
    return [item for item in items if not (item.get("status") or {}).get("ended")]


def free(lab: Service) -> None:
    eventually(lambda: not open_leases(lab), seconds=120, what="all leases released")
    until(lab, "desk", availableReplicas=1)


def test_a_command_has_the_target_and_its_exit_code_is_passed_on(lab: Service) -> None:
    script = "j power on && echo $JMP_EXPORTER has $JMP_EXPORTER_LABELS && exit 7"
    done = lab.bullpen("run", *BOARD, "--", "bash", "-c", script, check=False, timeout=120)
    assert done.returncode == 7, done.stderr
    assert "desk-0 has board=desk" in done.stdout
    free(lab)


def test_the_console_shows_the_board_booting_and_takes_input(lab: Service) -> None:
    process = subprocess.Popen(
        [str(BIN / "bullpen"), "console", *BOARD, "--power-on"],
        env={**lab.environment, "BULLPEN_DATA": str(lab.data)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    seen = b""

    def printed(words: bytes) -> None:
        nonlocal seen
        while words not in seen:
            data = os.read(process.stdout.fileno(), 4096)  # type: ignore[union-attr]
            assert data, (words, seen)
            seen += data

    printed(b"autoboot")
    process.stdin.write(b"\n")
    process.stdin.flush()
    printed(b"=> ")
    process.stdin.write(b"echo he''llo\n")
    process.stdin.flush()
    printed(b"hello")
    process.stdin.write(b"\x1d")
    process.stdin.flush()
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    free(lab)


def test_whoever_waits_is_told_why_and_for_how_long(lab: Service) -> None:
    holder = started(lab, "run", *BOARD, "--", "sleep", "600")
    try:
        eventually(lambda: bool(open_leases(lab)), seconds=120, what="the lease of the holder")
        done = lab.bullpen("shell", *BOARD, "--timeout", "3s", "--", "true", check=False)
        assert done.returncode == 12, done.stderr
        assert "waiting: " in done.stderr
        assert "no exporter was free within 3 s" in done.stderr
        eventually(lambda: len(open_leases(lab)) == 1, seconds=120, what="the waiter gone")
    finally:
        holder.send_signal(signal.SIGTERM)
        holder.communicate(timeout=300)
    free(lab)


def test_a_lease_that_nothing_can_serve_has_its_own_exit_code(lab: Service) -> None:
    done = lab.bullpen("shell", "-l", "board=none", "--", "true", check=False)
    assert done.returncode == 13
    assert "no exporter and no pool matches board=none" in done.stderr


def test_without_a_target_the_command_says_how_to_name_one(lab: Service) -> None:
    done = lab.bullpen("shell", "--", "true", check=False)
    assert (done.returncode, "-l board=rpi4" in done.stderr) == (2, True)


def test_the_end_of_the_lease_hangs_up_on_the_command(lab: Service) -> None:
    script = "trap 'kill %1; echo hung up; exit 1' HUP; echo began; sleep 600 & wait"
    process = started(lab, "shell", *BOARD, "--", "bash", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "began\n"
    (lease,) = open_leases(lab)
    lab.bullpen("lease", "release", lease["metadata"]["name"])
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 14, errors
    assert "the lease has ended" in errors
    assert "hung up" in output
    free(lab)


def test_a_killed_command_holds_its_lease_for_a_minute_at_most(lab: Service) -> None:
    process = started(lab, "run", *BOARD, "--", "sleep", "600", start_new_session=True)
    eventually(lambda: bool(open_leases(lab)), seconds=120, what="the lease")
    (lease,) = open_leases(lab)
    # It is in use, so the idle time-out does not count while the command runs.
    eventually(lambda: bool(open_leases(lab)[0]["status"].get("sessions")), what="a session")
    assert lease["spec"]["tags"] == {"idle-timeout": "1m"}
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    eventually(lambda: not open_leases(lab), seconds=120, what="the lease ended")
    (ended,) = [
        item
        for item in lab.get("leases")["items"]
        if item["metadata"]["uid"] == lease["metadata"]["uid"]
    ]
    assert ended["status"]["conditions"][-1]["reason"] == "Idle"


def test_a_shell_imports_little() -> None:
    """It starts in a fifth of the time of ``jmp shell`` because it imports little."""
    modules = "bullpen.cli.shell, bullpen.client.exporter, bullpen.client.tunnel"
    code = f"import sys, {modules}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    heavy = {"jumpstarter", "pydantic", "anyio", "kubernetes_asyncio", "bullpen.api.resources"}
    assert not heavy & loaded
    assert len([name for name in loaded if name.startswith("bullpen.")]) < 30


def test_a_created_lease_is_kept_and_a_refused_one_is_withdrawn(lab: Service) -> None:
    made = lab.bullpen("lease", "create", *BOARD, "--duration", "5m", "-o", "json", timeout=120)
    found = json.loads(made.stdout)
    assert found["labels"]["board"] == "desk"
    assert [item["metadata"]["name"] for item in open_leases(lab)] == [found["lease"]]
    for command in ("shell", "run"):
        used = lab.bullpen(command, "--lease", found["lease"], "--", "sh", "-c", "echo $JMP_LEASE")
        assert (used.stdout.strip(), used.stderr) == (found["lease"], "")
    assert [item["metadata"]["name"] for item in open_leases(lab)] == [found["lease"]], "kept"
    both = lab.bullpen("shell", *BOARD, "--lease", found["lease"], "--", "true", check=False)
    assert (both.returncode, "leave out -l" in both.stderr) == (2, True)
    late = lab.bullpen("lease", "create", *BOARD, "--timeout", "2s", check=False)
    assert late.returncode == 12, late.stderr
    eventually(lambda: len(open_leases(lab)) == 1, seconds=120, what="the second one withdrawn")
    lab.bullpen("lease", "release", found["lease"])
    over = lab.bullpen("shell", "--lease", found["lease"], "--", "true", check=False)
    assert (over.returncode, "the lease has ended" in over.stderr) == (13, True)
    free(lab)
