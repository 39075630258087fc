"""``bullpen doctor`` says what a machine lacks, and the command that mends it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bullpen.cli.options import Exit
from support.real_service import BIN

pytestmark = pytest.mark.real

CHECKS = [
    "qemu", "qemu-img", "podman", "adb", "sandbox.user", "sandbox.files", "sandbox.network",
    "sandbox.programs", "sandbox.limits", "kvm",
]  # fmt: skip


def doctor(tmp_path: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"PATH": path} if path else {})}
    command = [str(BIN / "bullpen"), "doctor", "--data", str(tmp_path / "data"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return {item["name"]: item for item in json.loads(done.stdout)["findings"]}


def test_everything_is_looked_at_and_the_code_says_whether_something_is_missing(
    tmp_path: Path,
) -> None:
    done = doctor(tmp_path, "-o", "json")
    found = findings(done)
    assert list(found) == CHECKS
    missing = [name for name, item in found.items() if item["status"] == "missing"]
    assert done.returncode == (Exit.LACKING if missing else Exit.OK)
    for item in found.values():
        assert bool(item["problem"]) == bool(item["remedy"]) == (item["status"] != "ok")
    assert found["qemu"]["status"] == found["sandbox.programs"]["status"] == "ok"
    assert not (tmp_path / "data").exists(), "it changes nothing"


def test_what_is_not_installed_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("setpriv", "unshare", "true"):
        (tools / name).symlink_to(str(shutil.which(name)))
    done = doctor(tmp_path, path=str(tools))
    assert done.returncode == Exit.LACKING
    assert "sandbox.programs: bubblewrap is not installed" in done.stdout
    for package in ("bubblewrap", "qemu-utils", "qemu-system", "podman runc", "adb"):
        assert f"to fix it: apt-get install {package}" in done.stdout
