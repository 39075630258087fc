"""A pool of Corellium devices on the stand-in: what its exporter has, and what it keeps."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bullpen.testing.fake_corellium import API_TOKEN, PROJECT
from support.qemu_pools import EXAMPLES, shell, until
from support.real_service import BIN, Service, eventually, free_port_base, running_service

pytestmark = pytest.mark.real

NAME = "kronos"
SECONDS_MAX = 120.0

SCRIPT = """\
from jumpstarter.utils.env import env
with env() as client:
    with client.serial.pexpect() as console:
        console.expect("device ([a-z0-9]+)", timeout=120)
        print("DEVICE", console.match[1].decode())
        console.sendline("history")
        console.expect("you said: ([^\\r]*)\\r", timeout=120)
        print("FOUND", console.match[1].decode() or "nothing")
        console.sendline("a secret")
        console.expect("you said: a secret", timeout=120)
    client.power.cycle(wait=0)
    print("SWITCHED")
"""


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[str]:
    """The URL of a stand-in in a process of its own, where it outlives the service."""
    command = [sys.executable, "-m", "bullpen.testing.corellium_stand_in", "--boot-seconds", "0.5"]
    log = tmp_path / "stand-in.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: "stand-in for Corellium" in log.read_text(), seconds=SECONDS_MAX)
        (url,) = re.findall(r"stand-in for Corellium at (\S+);", log.read_text())
        yield url
    finally:
        process.terminate()
        process.wait(120)


def apply_pool(service: Service, url: str) -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "corellium"},
        "stringData": {"token": API_TOKEN},
    }
    config = {
        "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
        "kind": "ProviderConfig",
        "metadata": {"name": "phones"},
        "spec": {
            "provisioner": "corellium.jumpstarter.dev",
            "endpoint": url,
            "credentialsSecretRef": {"name": "corellium"},
            "parameters": {"projectId": PROJECT},
        },
    }
    profile, pool = yaml.safe_load_all((EXAMPLES / "corellium-pool.yaml").read_text())
    pool["spec"]["recycleStrategy"] = "InPlaceReuse"
    items = {"apiVersion": "v1", "kind": "List", "items": [secret, config, profile, pool]}
    service.kubectl("apply", "-f", "-", input=json.dumps(items))


def devices(service: Service) -> list[dict[str, Any]]:
    listed = service.bullpen("cloud", "list", "-o", "json").stdout
    found: list[dict[str, Any]] = json.loads(listed)["machines"]
    return found


def test_an_exporter_has_a_session_for_its_device_and_a_new_one_after_a_crash(
    tmp_path: Path, cloud: str
) -> None:
    with running_service(tmp_path, "--port-base", str(free_port_base())) as lab:
        apply_pool(lab, cloud)
        until(lab, NAME, seconds=SECONDS_MAX, availableReplicas=1)
        (device,) = devices(lab)
        assert (device["owned"], device["expires"], device["hourlyCost"]) == (True, "never", "0.50")
        (place,) = lab.data.glob("instances/*/granted/corellium.json")
        before = session(place)
        files = [*lab.data.glob("instances/**/*"), lab.log]
        texts = [path.read_text(errors="replace") for path in files if path.is_file()]
        assert any(before in text for text in texts)
        assert not [text for text in texts if API_TOKEN in text], "no exporter gets the account's"
        assert before not in lab.log.read_text()

        lab.stop(signal.SIGKILL)
        lab.start()
        eventually(
            lambda: session(place) != before,
            seconds=SECONDS_MAX,
            what="a newer session for the exporter that runs",
        )
        assert [each["id"] for each in devices(lab)] == [device["id"]], "it was kept"

        for _ in range(2):
            process = shell(lab, NAME, str(BIN / "python"), "-c", SCRIPT)
            said, _ = process.communicate(timeout=SECONDS_MAX)
            assert process.returncode == 0, said
            assert f"DEVICE {device['id']}" in said
            assert "FOUND nothing" in said, "it is as before the first lease"
            assert "SWITCHED" in said
        lab.kubectl("delete", f"exporterset/{NAME}")
        eventually(lambda: devices(lab) == [], seconds=SECONDS_MAX, what="the end of all devices")


def session(place: Path) -> str:
    found: str = json.loads(place.read_text())["session"]
    return found
