"""The service as systemd runs it, as far as that works without a machine that systemd booted."""

from __future__ import annotations

import shlex
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from support.real_service import BIN, STOP_SECONDS_MAX

pytestmark = pytest.mark.real

READY_SECONDS_MAX = 120.0


def test_the_command_of_the_unit_notifies_systemd_when_it_answers_and_when_it_stops(
    tmp_path: Path,
) -> None:
    show = (BIN / "bullpen", "service", "show", "--data", tmp_path / "my lab", "--port-base", "0")
    unit = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    command = shlex.split(line.removeprefix("ExecStart="))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(READY_SECONDS_MAX)
        manager.bind(str(tmp_path / "notify"))
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "PATH": "/usr/bin:/bin"}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        try:
            assert manager.recv(100) == b"READY=1"
            assert (tmp_path / "my lab" / "endpoints.json").exists()
            process.send_signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            assert process.wait(STOP_SECONDS_MAX) == 0
        finally:
            process.kill()
            process.wait()
