"""A provisioner in a package of its own: found, held to the contract, and serving a pool."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from bullpen.testing.provisioner_contract import ProvisionerContract
from support.real_service import Service

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

PACKAGE = Path(__file__).parents[1] / "third_party" / "turtlelab"
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with everything that is here, and the package besides."""
    place = tmp_path_factory.mktemp("third-party")
    run(sys.executable, "-m", "venv", "--without-pip", place / "venv", cwd=place)
    python = place / "venv" / "bin" / "python"
    packages = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place
    )
    # Our own environment with its packages, the service included, is one more place to look.
    ours = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (Path(packages.strip()) / "ours.pth").write_text(ours)
    source = shutil.copytree(PACKAGE, place / "turtlelab")
    run(
        BIN / "uv", "pip", "install", "-q", "--no-deps", "--no-build-isolation",
        "--python", python, source, cwd=place,
        VIRTUAL_ENV=str(place / "venv"),
    )  # fmt: skip
    return place


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


def test_a_third_partys_provisioner_passes_the_contract_suite(environment: Path) -> None:
    python = environment / "venv" / "bin" / "python"
    said = run(
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=environment / "turtlelab"
    )
    promises = [name for name in dir(ProvisionerContract) if name.startswith("test_")]
    assert f"{len(promises)} passed" in said


def test_a_third_partys_provisioner_serves_a_pool(environment: Path, tmp_path: Path) -> None:
    python = environment / "venv" / "bin" / "python"
    service = Service(tmp_path / "data", "--port-base", "0", python=python)
    service.start()
    try:
        service.kubectl("apply", "-f", str(environment / "turtlelab" / "pool.yaml"))
        service.kubectl("wait", "exporterset/turtles", "--for=condition=Available", "--timeout=60s")
        said = service.jmp(
            "shell", "--client-config", str(service.data / "clients" / "default.yaml"),
            "-l", "animal=turtle", "--", "j", "power", "on",
        )  # fmt: skip
        assert said.returncode == 0
    finally:
        service.stop()


def test_a_provisioner_that_cannot_be_loaded_is_reported_and_costs_no_other(
    environment: Path, tmp_path: Path
) -> None:
    python = environment / "venv" / "bin" / "python"
    code = (
        "from bullpen.provisioners import plugins;"
        "import turtlelab.provisioner as broken;"
        "del broken.PLUGIN;"
        "print([found.name for found in plugins.load_all()]);"
        "plugins.load('turtle.example.com')"
    )
    done = subprocess.run(
        [python, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    own = [
        "container.bullpen.dev", "mock.jumpstarter.dev", "program.bullpen.dev",
        "qemu.jumpstarter.dev",
    ]  # fmt: skip
    assert done.stdout.strip() == str(own)
    assert "provisioner turtle.example.com of turtlelab cannot be loaded" in done.stderr
