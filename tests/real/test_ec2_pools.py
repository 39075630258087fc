"""Pools of EC2 instances on a stand-in for EC2, with a real SSH server as each machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from bullpen.testing.ec2_stand_in import SSH_PORT
from support.qemu_pools import EXAMPLES, shell, until
from support.real_service import Service, eventually, running_service
from support.ssh_hosts import has_sshd

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not has_sshd(), reason="openssh-server is not installed"),
]

NAME = "ubuntu-ec2"
SECRET = "a-secret-of-the-account"
SECONDS_MAX = 120.0


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[str]:
    """The URL of a stand-in in a process of its own."""
    command = [sys.executable, "-m", "bullpen.testing.ec2_stand_in"]
    log = tmp_path / "stand-in.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--directory", str(tmp_path / "machines")],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(lambda: "stand-in for EC2" in log.read_text(), seconds=SECONDS_MAX)
        (url,) = re.findall(r"stand-in for EC2 at (\S+);", log.read_text())
        yield url
    finally:
        process.terminate()
        process.wait(120)


@pytest.fixture
def lab(tmp_path: Path, cloud: str) -> Iterator[Service]:
    with running_service(tmp_path) as running:
        yield running


def apply_pool(service: Service, url: str) -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "aws"},
        "stringData": {"aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": SECRET},
    }
    config = {
        "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
        "kind": "ProviderConfig",
        "metadata": {"name": "aws"},
        "spec": {
            "provisioner": "ec2.jumpstarter.dev",
            "endpoint": url,
            "credentialsSecretRef": {"name": "aws"},
            "parameters": {"region": "eu-central-1"},
            "limits": {"maxInstances": 2},
        },
    }
    profile, pool = yaml.safe_load_all((EXAMPLES / "ec2-pool.yaml").read_text())
    user = psutil.Process().username()
    profile["spec"]["parameters"]["ssh"] = {"user": user, "port": SSH_PORT}
    # As JSON: PyYAML writes the id of an account, which begins with 0, like a number.
    items = {"apiVersion": "v1", "kind": "List", "items": [secret, config, profile, pool]}
    service.kubectl("apply", "-f", "-", input=json.dumps(items))


def machines(service: Service) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(service.bullpen("cloud", "list", "-o", "json").stdout)[
        "machines"
    ]
    return found


def test_a_manifest_becomes_an_instance_and_a_lessee_logs_in(
    lab: Service, cloud: str, tmp_path: Path
) -> None:
    apply_pool(lab, cloud)
    until(lab, NAME, seconds=SECONDS_MAX, availableReplicas=1)
    (instance,) = machines(lab)
    assert (instance["owned"], instance["hourlyCost"]) == (True, "0.02")

    process = shell(lab, NAME, "j", "ssh", "--", "echo I am $EC2_INSTANCE")
    said, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, said
    assert f"I am {instance['id']}" in said

    until(lab, NAME, seconds=SECONDS_MAX, availableReplicas=1)
    (another,) = [found for found in machines(lab) if found["id"] != instance["id"]]
    files = [*lab.data.glob("instances/**/*"), lab.log]
    texts = [path.read_text(errors="replace") for path in files if path.is_file()]
    assert texts
    assert not [text for text in texts if SECRET in text], "no exporter gets the account's"
    assert "PRIVATE KEY" not in lab.log.read_text()
    login = [*(tmp_path / "machines" / another["id"]).glob("authorized_keys")]
    assert (
        login[0].read_text() != (login[0].parents[1] / instance["id"] / login[0].name).read_text()
    )

    lab.kubectl("delete", f"exporterset/{NAME}")
    eventually(lambda: machines(lab) == [], seconds=SECONDS_MAX, what="the end of all instances")
    lab.kubectl("delete", "providerconfig/aws", "--timeout=180s", timeout=200)


def test_an_account_with_mistakes_is_named_and_one_in_use_keeps_its_region(
    lab: Service, cloud: str
) -> None:
    apply_pool(lab, cloud)
    wrong = {**lab.get("providerconfig", "aws"), "metadata": {"name": "nowhere"}}
    wrong["spec"] = {**wrong["spec"], "parameters": {}}
    lab.kubectl("apply", "-f", "-", input=json.dumps(wrong))

    def error(name: str) -> str:
        status: Any = lab.get("providerconfig", name).get("status") or {}
        return str(status.get("lastError", ""))

    eventually(lambda: "parameters.region" in error("nowhere"), seconds=120, what="the error")
    lab.kubectl("delete", "providerconfig/nowhere")
    until(lab, NAME, seconds=SECONDS_MAX, availableReplicas=1)
    before = machines(lab)
    for region, said in (("us-east-1", "false"), ("eu-central-1", "true")):
        changed = {"spec": {"parameters": {"region": region}}}
        lab.kubectl("patch", "providerconfig/aws", "--type=merge", "-p", json.dumps(changed))
        lab.kubectl("wait", "providerconfig/aws", f"--for=condition=SettingsInEffect={said}")
        assert error("aws") == ""
        assert [each["id"] for each in machines(lab)] == [each["id"] for each in before]
