"""``bullpen cloud`` and a provider of another package: what is paid for is seen and deleted."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from bullpen.cli.options import Exit
from bullpen.kit.clock import SystemClock
from support import file_cloud
from support.qemu_pools import until
from support.real_service import Service, eventually, running_service

pytestmark = pytest.mark.real

GROUP = "virtualtarget.jumpstarter.dev/v1alpha1"


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(file_cloud.install(tmp_path / "packages")))
    place = tmp_path / "account"
    place.mkdir()
    return place


@pytest.fixture
def lab(tmp_path: Path, account: Path) -> Iterator[Service]:
    with running_service(tmp_path) as running:
        yield running


def apply_pool(service: Service, account: Path) -> None:
    token = base64.b64encode(b"of the account").decode()
    pool = {
        "virtualTargetClassName": "rented",
        "minAvailableReplicas": 1,
        "maxReplicas": 1,
        "selector": {"matchLabels": {"board": "rented"}},
        "template": {"metadata": {"labels": {"board": "rented"}}},
    }
    objects = [
        {"apiVersion": "v1", "kind": "Secret", "data": {"token": token}},
        {
            "apiVersion": GROUP,
            "kind": "ProviderConfig",
            "spec": {
                "provisioner": file_cloud.NAME,
                "endpoint": str(account),
                "credentialsSecretRef": {"name": "rented"},
            },
        },
        {
            "apiVersion": GROUP,
            "kind": "VirtualTargetClass",
            "spec": {
                "provisioner": file_cloud.NAME,
                "providerConfigRef": {"name": "rented"},
            },
        },
        {"apiVersion": GROUP, "kind": "ExporterSet", "spec": pool},
    ]
    named = [{**each, "metadata": {"name": "rented"}} for each in objects]
    service.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(named))


def machines(service: Service, *arguments: str) -> list[dict[str, Any]]:
    said = service.bullpen("cloud", "list", "-o", "json", *arguments).stdout
    found: list[dict[str, Any]] = json.loads(said)["machines"]
    return found


def test_machines_are_listed_with_their_cost_and_what_another_lab_left_is_swept(
    lab: Service, account: Path
) -> None:
    apply_pool(lab, account)
    until(lab, "rented", seconds=120, availableReplicas=1)
    now = SystemClock().now()
    for number in range(2):
        left = file_cloud.machine_file(
            "gone", ("default", f"left-{number}"), "uid", created=now, expires=now + timedelta(1)
        )
        (account / f"left-{number}.json").write_text(left)

    (own,) = machines(lab)
    assert own["exporter"] == "default/rented-0"
    assert (own["provider"], own["owned"], own["hourlyCost"]) == ("default/rented", True, "0.25")
    assert lab.bullpen("cloud", "sweep").stdout == "Nothing is left over.\n"
    assert {each["id"] for each in machines(lab, "--lab", "gone")} == {"left-0", "left-1"}

    would = lab.bullpen("cloud", "sweep", "--lab", "gone", "--dry-run").stdout
    assert would.count("would be deleted") == 2
    refused = lab.bullpen("cloud", "sweep", "--lab", "gone", check=False, input="n\n")
    assert refused.returncode != 0
    assert len(machines(lab, "--lab", "gone")) == 2, "nobody was sure"

    done = lab.bullpen("cloud", "sweep", "--lab", "gone", "--yes").stdout
    assert done.count("is being deleted") == 2
    assert [path.stem for path in account.glob("*.json")] == [own["id"]]
    assert "board" not in done


def test_the_kubeconfig_of_an_embedded_home_is_refused_with_what_to_do(
    lab: Service, account: Path
) -> None:
    """Without the id in the data directory, all machines would seem to be another lab's."""
    kubeconfig = str(lab.data / "kubeconfig")
    for command in ("list", "sweep"):
        done = lab.bullpen("cloud", command, "--kubeconfig", kubeconfig, check=False)
        assert done.returncode not in (Exit.OK, Exit.UNREACHABLE)
        assert "use --data" in done.stderr
    assert machines(lab, "--kubeconfig", kubeconfig, "--lab", "gone") == []


def test_a_provider_that_does_not_answer_is_named(lab: Service, account: Path) -> None:
    apply_pool(lab, account)
    until(lab, "rented", seconds=120, availableReplicas=1)
    account.rename(account.with_name("elsewhere"))
    for command in ("list", "sweep"):
        done = lab.bullpen("cloud", command, check=False)
        assert done.returncode == Exit.UNREACHABLE
        assert f"default/rented: {account} does not exist" in done.stderr
    account.with_name("elsewhere").rename(account)


def test_deleting_the_pool_and_its_provider_leaves_nothing_that_costs_money(
    lab: Service, account: Path
) -> None:
    apply_pool(lab, account)
    until(lab, "rented", seconds=120, availableReplicas=1)
    assert len([*account.glob("*.json")]) == 1
    lab.kubectl("delete", "exporterset/rented")
    eventually(lambda: not [*account.glob("*.json")], seconds=120, what="the end of its machine")
