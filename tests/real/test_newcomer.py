"""Two commands and one click lead a newcomer to a U-Boot prompt in the browser (README.md)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.browser import Person, chromium
from support.newcomer import types_at_a_prompt

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(1_200)]

ROOT = Path(__file__).parents[2]
COMMAND_SECONDS_MAX = 600.0


@pytest.fixture
def person() -> Iterator[Person]:
    with chromium() as browser:
        found = Person(browser)
        yield found
        found.close()


@pytest.fixture
def surroundings(tmp_path: Path) -> dict[str, str]:
    """A home directory that is empty, and nothing of this checkout.

    The ports are not the usual ones, which another service of this machine may have.
    """
    home = tmp_path / "home"
    home.mkdir()
    hidden = (
        "PYTHONPATH",
        "VIRTUAL_ENV",
        "MAKEFLAGS",
        "MAKELEVEL",
        "BULLPEN_DATA",
        "COVERAGE_RCFILE",
    )
    kept = {key: value for key, value in os.environ.items() if key not in hidden}
    # What was downloaded already is not downloaded again.
    caches = {
        "UV_CACHE_DIR": str(Path.home() / ".cache" / "uv"),
        "PIP_CACHE_DIR": str(Path.home() / ".cache" / "pip"),
    }
    return {**caches, **kept, "HOME": str(home), "BULLPEN_PORT_BASE": "0"}


def run(*command: str | Path, cwd: Path, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_git_clone_and_make_up(
    tmp_path: Path, person: Person, surroundings: dict[str, str]
) -> None:
    run("git", "clone", "-q", ROOT, "bullpen", cwd=tmp_path, environment=surroundings)
    types_at_a_prompt(person, ("make", "up"), tmp_path / "bullpen", surroundings)


def test_pip_install_and_bullpen_up(
    tmp_path: Path, person: Person, surroundings: dict[str, str]
) -> None:
    """In an environment with nothing but pip; versions are those that were tested."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=ROOT)
    (wheel,) = tmp_path.glob("bullpen-*.whl")
    lock = (ROOT / "deploy" / "images" / "requirements.lock").read_text()
    pinned = tmp_path / "constraints.txt"
    pinned.write_text("\n".join(re.findall(r"^[\w.\[\]-]+==[^ \\]+", lock, re.MULTILINE)))
    run(sys.executable, "-m", "venv", "venv", cwd=tmp_path)
    bin_ = tmp_path / "venv" / "bin"
    run(bin_ / "pip", "install", "-q", "-c", pinned, wheel, cwd=tmp_path, environment=surroundings)
    up = (bin_ / "bullpen", "up", "--example", "uboot-pool")
    types_at_a_prompt(person, up, tmp_path, surroundings)
