"""The wheel, installed into an environment that has nothing of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place, cwd=ROOT)
    (found,) = place.glob("bullpen-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel and its pinned dependencies."""
    place = tmp_path_factory.mktemp("clean")
    lock = ROOT / "deploy" / "images" / "requirements.lock"
    run(sys.executable, "-m", "venv", "--without-pip", place / "venv", cwd=place)
    python = place / "venv" / "bin" / "python"
    install = (BIN / "uv", "pip", "install", "-q", "--no-deps", "--python", python)
    run(*install, "-r", lock, cwd=place)
    run(*install, wheel, cwd=place)
    return python.parent


def test_the_wheel_has_examples_and_a_type_marker_and_no_simulator(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "bullpen/examples/uboot-pool.yaml" in names
    assert "bullpen/py.typed" in names
    assert "bullpen/dashboard/built/index.html" in names
    assert not [name for name in names if name.startswith(("bullpen/sim/", "bullpen/bench/"))]


def test_the_demo_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    said = run(installed / "bullpen", "demo", cwd=tmp_path, PYTHONPATH="")
    assert "=> " in said, "a U-Boot prompt was shown"
    assert "Stopped cleanly; nothing is left behind." in said


def test_an_unknown_example_is_refused_with_the_known_ones(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [installed / "bullpen", "up", "--example", "uboot"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "there is no example 'uboot'; there are" in done.stderr
    assert "uboot-pool" in done.stderr


def test_commands_that_need_a_checkout_say_so(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [installed / "bullpen", "sim"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "sim is not included in the installed package; run it from a checkout" in done.stderr
    listed = run(installed / "bullpen", "--help", cwd=tmp_path)
    assert "Simulate" not in listed
