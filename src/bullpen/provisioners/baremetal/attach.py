"""Connects the SSH session it runs in with the agent of a host, and starts one if none runs.

It passes bytes between its standard streams and the agent's socket, until either ends.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

from bullpen.provisioners.baremetal.agent import LOG, ORPHAN_SECONDS_MAX, STATE, AgentState

START_SECONDS_MAX = 60.0
"""Loading takes a second; on a busy machine with cold caches, many."""

LOOK_SECONDS = 0.05
READ_BYTES = 1 << 16
LAST_BYTES = 2000
ABSENT, FAILED = 3, 4
"""Exit codes: no agent runs and none was to be started; the agent did not start."""


def connected(data: Path) -> socket.socket | None:
    """A connection to the agent that runs; None if there is none."""
    try:
        state = msgspec.json.decode((data / STATE).read_bytes(), type=AgentState)
        if not state.process.alive():
            return None
        found = socket.socket(socket.AF_UNIX)
        found.connect(state.socket)
    except (OSError, msgspec.DecodeError):
        return None
    return found


def start(data: Path, environment: Path, orphan_seconds_max: float) -> subprocess.Popen[bytes]:
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(data / LOG, "ab") as output:
        return subprocess.Popen(
            [
                sys.executable, "-m", "bullpen.provisioners.baremetal.agent",
                "--data", str(data), "--environment", str(environment),
                "--orphan-seconds-max", str(orphan_seconds_max),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )  # fmt: skip


def find(data: Path, environment: Path | None, orphan_seconds_max: float) -> socket.socket | int:
    """A connection to the agent, or an exit code. Without an environment none is started."""
    link = connected(data)
    if link is not None or environment is None:
        return link or ABSENT
    started = start(data, environment, orphan_seconds_max)
    for _ in range(int(START_SECONDS_MAX / LOOK_SECONDS)):
        link = connected(data)
        if link is not None:
            return link
        if started.poll() == 0:
            # It found another agent, which may have been about to end.
            started = start(data, environment, orphan_seconds_max)
        elif started.poll() is not None:
            break
        time.sleep(LOOK_SECONDS)
    sys.stderr.write((data / LOG).read_bytes()[-LAST_BYTES:].decode(errors="replace"))
    return FAILED


def relay(link: socket.socket) -> None:
    """Pass bytes both ways; the process ends when either side does."""

    def receive() -> None:
        while data := link.recv(READ_BYTES):
            os.write(1, data)
        os._exit(0)

    threading.Thread(target=receive, daemon=True).start()
    while data := os.read(0, READ_BYTES):
        link.sendall(data)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--environment", type=Path, help="start an agent in it if none runs")
    parser.add_argument("--orphan-seconds-max", type=float, default=ORPHAN_SECONDS_MAX)
    given = parser.parse_args()
    found = find(given.data, given.environment, given.orphan_seconds_max)
    if isinstance(found, int):
        sys.exit(found)
    relay(found)


if __name__ == "__main__":
    main()
