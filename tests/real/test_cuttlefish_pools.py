"""A pool of Cuttlefish devices on the stand-in, with Debian's adb in the sandbox."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bullpen.testing.cuttlefish_stand_in import DEVICES_MAX
from support.qemu_pools import EXAMPLES, shell, until
from support.real_service import BIN, eventually, free_port_base, running_service

pytestmark = pytest.mark.real

NAME = "cuttlefish"
SECONDS_MAX = 120.0

SCRIPT = """\
from jumpstarter.utils.env import env
with env() as client:
    with client.serial.pexpect() as console:
        console.expect_exact("$ ", timeout=120)
        console.sendline("cat kept")
        console.expect("(not found|a secret)", timeout=120)
        print("FOUND", console.match[1].decode())
        console.sendline("echo a secret > kept")
        console.expect_exact("$ ", timeout=120)
        console.sendline("cat kept")
        console.expect("\\na secret", timeout=120)
"""


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[str]:
    """The URL of a stand-in in a process of its own."""
    first = free_port_base()
    assert DEVICES_MAX < 10, "a lab has more ports than that"
    command = [sys.executable, "-m", "bullpen.testing.cuttlefish_stand_in", "--port", "0"]
    log = tmp_path / "stand-in.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--adb-port", str(first), "--boot-seconds", "0.5"],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(lambda: "stand-in for Cuttlefish" in log.read_text(), seconds=SECONDS_MAX)
        (url,) = re.findall(r"stand-in for Cuttlefish at (\S+)", log.read_text())
        yield url
    finally:
        process.terminate()
        process.wait(120)


def test_a_device_that_is_kept_is_as_new_for_the_next_lessee(tmp_path: Path, cloud: str) -> None:
    config = {
        "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
        "kind": "ProviderConfig",
        "metadata": {"name": NAME},
        "spec": {"provisioner": "cuttlefish.bullpen.dev", "endpoint": cloud},
    }
    profile, pool = yaml.safe_load_all((EXAMPLES / "cuttlefish-pool.yaml").read_text())
    pool["spec"] |= {"recycleStrategy": "InPlaceReuse", "maxReplicas": 1}
    with running_service(tmp_path, "--port-base", str(free_port_base())) as lab:
        items = {"apiVersion": "v1", "kind": "List", "items": [config, profile, pool]}
        lab.kubectl("apply", "-f", "-", input=json.dumps(items))
        until(lab, NAME, seconds=SECONDS_MAX, availableReplicas=1)
        (before,) = lab.get("exporters")["items"]
        for _ in range(2):
            process = shell(lab, NAME, str(BIN / "python"), "-c", SCRIPT)
            said, _ = process.communicate(timeout=SECONDS_MAX)
            assert process.returncode == 0, said
            assert "FOUND not found" in said
        (after,) = lab.get("exporters")["items"]
        assert after["metadata"]["uid"] == before["metadata"]["uid"], "it was reset, not replaced"
