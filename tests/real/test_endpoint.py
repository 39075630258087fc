"""``bullpen up --endpoint``: the host that other machines use, in everything they are given."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bullpen.cli.options import Exit
from support.qemu_pools import until
from support.real_service import BIN, running_service

pytestmark = pytest.mark.real

HOST = "127.0.0.2"
"""This machine under an address that no certificate has by default."""

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_clients_and_exporters_use_the_advertised_host(tmp_path: Path) -> None:
    with running_service(tmp_path, "--listen", "0.0.0.0", "--endpoint", HOST) as service:
        for name in ("controller", "router"):
            assert service.endpoints[name].startswith(f"{HOST}:")
        kubeconfig = yaml.safe_load((service.data / "kubeconfig").read_text())
        assert kubeconfig["clusters"][0]["cluster"]["server"].startswith(f"https://{HOST}:")
        client = service.data / "clients" / "default.yaml"
        assert yaml.safe_load(client.read_text())["endpoint"].startswith(f"{HOST}:")

        service.kubectl("apply", "-f", str(EXAMPLES / "uboot-pool.yaml"))
        until(service, "uboot", availableReplicas=2)
        found: Any = service.get("exporters")
        (endpoint,) = {item["status"]["endpoint"] for item in found["items"]}
        assert endpoint == service.endpoints["controller"]
        said = service.jmp(
            "shell", "--client-config", str(client), "-l", "board=uboot", "--", "j", "power", "on"
        )
        assert said.returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--listen", "0.0.0.0"), "--listen 0.0.0.0 needs --endpoint HOST"),
        (("--listen", "::"), "--listen :: needs --endpoint HOST"),
        (("--endpoint", "https://lab.example.com"), "is not a host"),
        (("--endpoint", "lab.example.com:8080"), "is not a host"),
    ],
)
def test_an_unusable_endpoint_is_refused_before_anything_starts(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    data = tmp_path / "data"
    done = subprocess.run(
        [str(BIN / "bullpen"), "up", "--data", str(data), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == Exit.INVALID
    assert said in done.stderr
    assert not data.exists()
