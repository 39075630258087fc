"""What the recipes for pipelines and autoscalers do, done: with the real jmp, kubectl and QEMU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.real_service import Service, eventually

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to"


def test_the_line_of_every_pipeline_takes_a_target_and_gives_it_back(service: Service) -> None:
    page = (HOW_TO / "ci-gitlab.md").read_text()
    (line,) = re.findall(r"^ *- (jmp shell .*)$", page, re.MULTILINE)
    service.kubectl("apply", "-f", str(ROOT / "examples" / "uboot-pool.yaml"))
    client = service.data / "clients" / "default.yaml"
    said = service.run("bash", "-c", f"cd {ROOT} && {line}", timeout=90, LAB_CLIENT=str(client))
    assert "U-Boot answered." in said.stdout


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
