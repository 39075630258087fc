"""What the recipes for pipelines and autoscalers do, done: with the real jmp, kubectl and QEMU."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.real_service import Service, eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(1_200)]

INSTALL_SECONDS_MAX = 600.0

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to"


def gitlab() -> str:
    (job,) = yaml.safe_load(block("ci-gitlab.md", "yaml gitlab")).values()
    return "\n".join([*job["before_script"], *job["script"]])


def github() -> str:
    steps = yaml.safe_load(block("ci-github.md", "yaml github"))["jobs"]["boot"]["steps"]
    lines = []
    for step in (step for step in steps if "run" in step):
        for name, value in step.get("env", {}).items():
            secret = '"$(cat "$SECRET_FILE")"'
            lines.append(f"{name}={secret if 'secrets.' in value else value}")
        lines.append(step["run"])
    return "\n".join(lines)


def jenkins() -> str:
    (script,) = re.findall(r"sh '''\n(.*?)'''", block("ci-jenkins.md", "groovy"), re.DOTALL)
    return str(script)


def tekton() -> str:
    """The image of its step has what the other pipelines install."""
    task = yaml.safe_load(block("ci-tekton.md", "yaml"))
    script: str = task["spec"]["steps"][0]["script"]
    return script


def block(page: str, language: str) -> str:
    text = (HOW_TO / page).read_text()
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_steps_of_every_pipeline_take_a_target_and_give_it_back(
    service: Service, tmp_path: Path
) -> None:
    """As written, in a checkout and an environment without anything but pip."""
    service.kubectl("apply", "-f", str(ROOT / "examples" / "uboot-pool.yaml"))
    client = service.data / "clients" / "default.yaml"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / ".venv"], check=True)
    for script in (jenkins(), gitlab(), github(), tekton()):
        said = service.run(
            *("bash", "-euc", f"cd {tmp_path}\n{script}"),
            timeout=INSTALL_SECONDS_MAX,
            PATH=f"{tmp_path}/.venv/bin:/usr/local/bin:/usr/bin:/bin",
            LAB_CLIENT=str(client),
            SECRET_FILE=str(client),
            # What was downloaded already is not downloaded again.
            PIP_CACHE_DIR=str(Path.home() / ".cache" / "pip"),
            PIP_NO_COMPILE="1",
        )
        assert "U-Boot answered." in said.stdout, script

    def open_leases() -> list[Any]:
        items: Any = service.get("leases")["items"]
        return [item for item in items if not (item.get("status") or {}).get("ended")]

    eventually(lambda: not open_leases(), seconds=120, what="all targets given back")
    # The pages that follow name the first members of a new pool.
    service.kubectl("delete", "-f", str(ROOT / "examples" / "uboot-pool.yaml"))
    eventually(lambda: not service.get("exporters")["items"], seconds=120, what="an empty lab")


def test_the_ceiling_moves_by_the_scale_subresource(service: Service) -> None:
    page = (HOW_TO / "autoscale.md").read_text()
    service.kubectl("apply", "-f", str(ROOT / "examples" / "uboot-pool.yaml"))
    scale, pause, _certificate, remove = re.findall(
        r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL
    )
    assert service.run("bash", "-euc", scale).stdout.endswith("8")

    def members() -> str:
        return service.kubectl("get", "exporters", "-o", "name").stdout

    eventually(lambda: "uboot-1" in members(), seconds=120, what="the member that is removed")
    said = service.run("bash", "-euc", remove).stdout
    assert "uboot-1 leaves exporterset" in said
    assert said.rstrip().endswith("has a count of 7")
    service.run("bash", "-euc", pause)
    service.kubectl("delete", "-f", str(ROOT / "examples" / "uboot-pool.yaml"))
    eventually(lambda: not service.get("exporters")["items"], seconds=120, what="an empty lab")
