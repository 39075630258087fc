"""A provisioner in a package of its own: found, held to the contract, and serving a pool."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from bullpen.testing.provisioner_contract import ProvisionerContract
from support import provisioner_guide
from support.real_service import Service

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with everything that is here, and the package of the guide besides."""
    place = tmp_path_factory.mktemp("third-party")
    make_environment(place)
    provisioner_guide.write_package(place)
    run("pip", "install", "./turtlelab", cwd=place, PATH=path_of(place))
    return place


def make_environment(place: Path) -> None:
    """A virtual environment, and the commands that a reader of the guide has in it."""
    run(sys.executable, "-m", "venv", "--without-pip", place / "venv", cwd=place)
    python = place / "venv" / "bin" / "python"
    packages = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place
    )
    # Our own environment with its packages, the service included, is one more place to look.
    ours = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (Path(packages.strip()) / "ours.pth").write_text(ours)
    offline = "--no-deps --no-build-isolation"  # everything it needs is here
    for name, command in {
        "bullpen": f"{python} -m bullpen",
        "pytest": f"{python} -m pytest -p no:cacheprovider",
        "pip": f"VIRTUAL_ENV={place}/venv {BIN}/uv pip --quiet --offline",
    }.items():
        script = place / "venv" / "bin" / name
        options = f' "$1" {offline} --python {python} "${{@:2}}"' if name == "pip" else ' "$@"'
        script.write_text(f"#!/bin/bash\n{command}{options}\n")
        script.chmod(0o755)


def path_of(place: Path) -> str:
    return f"{place / 'venv' / 'bin'}:{BIN}:{os.environ['PATH']}"


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


def test_the_guide_makes_a_provisioner_that_serves_a_pool(tmp_path: Path) -> None:
    """Everything on the page, in its order: files are written, and commands are run."""
    make_environment(tmp_path)
    lab = Service(tmp_path / "lab", "--port-base", "0", python=tmp_path / "venv" / "bin" / "python")
    first, install, service, use = provisioner_guide.commands()
    assert service == provisioner_guide.SERVICE
    given = {"PATH": path_of(tmp_path)}
    run("bash", "-euc", first, cwd=tmp_path, **given)
    for path, text in provisioner_guide.files().items():
        (tmp_path / path).write_text(text)
    said = run("bash", "-euc", install, cwd=tmp_path, **given)
    promises = [name for name in dir(ProvisionerContract) if name.startswith("test_")]
    assert f"{len(promises)} passed" in said
    lab.start()
    try:
        run("bash", "-euc", use, cwd=tmp_path, **{**lab.environment, **given})
    finally:
        assert lab.stop() == 0


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
        "android.jumpstarter.dev", "container.bullpen.dev", "corellium.jumpstarter.dev",
        "cuttlefish.bullpen.dev", "ec2.jumpstarter.dev", "mock.jumpstarter.dev",
        "program.bullpen.dev", "qemu-baremetal.jumpstarter.dev", "qemu.jumpstarter.dev",
        "renode.jumpstarter.dev",
    ]  # fmt: skip
    assert done.stdout.strip() == str(own)
    assert "provisioner turtle.example.com of turtlelab cannot be loaded" in done.stderr
