"""A small disk of one's own, where the tests may have one."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Mount:
    path: Path

    def remount(self, option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", self.path], check=True)


@contextlib.contextmanager
def tmpfs(path: Path, *, megabytes: int) -> Iterator[Mount]:
    """A file system of that size; skips the test by name where that is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "bullpen-test", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not allow mounting a small disk")
    try:
        yield Mount(path)
    finally:
        subprocess.run(["umount", path], check=True)
