"""The tutorial, run as it is written."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from support.doc_pages import commands
from support.real_service import BIN, eventually

pytestmark = pytest.mark.real


def test_every_command_of_the_tutorial_works(tmp_path: Path) -> None:
    first, second, *rest = commands("tutorial/your-own-board.md")
    assert first.splitlines()[0] == "make setup"
    assert first.splitlines()[-1] == "bullpen up --data ./lab"
    # The repository's own environment stands in for `make setup` in a fresh directory.
    (tmp_path / ".venv").symlink_to(BIN.parent)
    environment = {
        **os.environ,
        "BULLPEN_PORT_BASE": "0",
        "HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(tmp_path),
    }
    start = "\n".join(["set -eu", *first.splitlines()[1:-1], f"exec {first.splitlines()[-1]}"])
    service = subprocess.Popen(["bash", "-c", start], cwd=tmp_path, env=environment)
    try:
        eventually((tmp_path / "lab" / "endpoints.json").exists, seconds=120)
        script = "\n".join(["set -eu", "set -m", second, *rest])
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        service.send_signal(signal.SIGINT)
        assert service.wait(120) == 0
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "desk" in done.stdout
    assert "Available" in done.stdout
    assert "LeaseAssigned" in done.stdout
    assert "exporter.jumpstarter.dev/desk deleted" in done.stdout
