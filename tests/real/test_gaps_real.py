"""Upstream's gaps that only show with a real machine. The others are in the contract tests."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.qemu_pools import CLASS, EXAMPLES, apply_class, apply_set, condition, shell, until
from support.real_service import BIN, Service, eventually, running_service

pytestmark = pytest.mark.real

MIB = 1 << 20
UBOOT = CLASS["spec"]["parameters"]["firmware"]["path"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("gaps")) as service:
        yield service


def test_gap_12_firmware_is_looked_for_where_it_is_used_and_missing_firmware_is_said(
    lab: Service,
) -> None:
    """It is never dropped in silence: the machine runs it, or the pool says what is missing."""
    apply_class(lab, "lost", parameters={"firmware": {"path": f"{UBOOT}.lost"}})
    apply_set(lab, "lost", virtualTargetClassName="lost", minAvailableReplicas=1)
    eventually(
        lambda: f"{UBOOT}.lost" in condition(lab, "lost", "Degraded").get("message", ""),
        seconds=120,
        what="the missing file being named",
    )
    lab.kubectl("delete", "exporterset", "lost")
    apply_class(lab, "found")
    apply_set(lab, "found", virtualTargetClassName="found")
    process = shell(lab, "found", str(BIN / "python"), str(EXAMPLES / "console.py"))
    output, _ = process.communicate(timeout=300)
    assert "U-Boot answered." in output, "the firmware that was named is what runs"
    lab.kubectl("delete", "exporterset", "found")


def test_gap_13_an_image_larger_than_a_hundred_mebibytes_is_flashed(
    lab: Service, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.write(b"a large image")
        file.truncate(160 * MIB)
    apply_class(lab, "large", parameters={"disks": [{"name": "root", "size": "1Gi"}]})
    apply_set(lab, "large", virtualTargetClassName="large")
    target = f"root:{image}"
    process = shell(lab, "large", "j", "qemu", "flasher", "flash", "--target", target)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    lab.kubectl("delete", "exporterset", "large")


def driver_types() -> list[str]:
    documents = [
        document
        for path in sorted(EXAMPLES.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]
    sets = [document for document in documents if document["kind"] == "ExporterSet"]
    assert len(sets) >= 4
    drivers = [d for s in sets for d in s["spec"]["template"].get("spec", {}).get("drivers", ())]
    return sorted({driver["type"] for driver in drivers if "type" in driver})


def test_gap_14_every_driver_the_examples_name_exists() -> None:
    types = driver_types()
    assert types
    for name in types:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


def test_gap_14_every_example_is_accepted_as_it_is(lab: Service) -> None:
    for path in sorted(EXAMPLES.glob("*.yaml")):
        lab.kubectl("apply", "--dry-run=server", "-f", str(path))


def test_gap_19_provisioners_work_side_by_side_and_their_pools_are_counted(lab: Service) -> None:
    apply_class(lab, "qemu")
    mock = {**CLASS, "metadata": {"name": "mock"}, "spec": {"provisioner": "mock.jumpstarter.dev"}}
    lab.kubectl("apply", "-f", "-", input=yaml.safe_dump(mock))
    apply_set(lab, "qemu", virtualTargetClassName="qemu", minAvailableReplicas=1)
    apply_set(lab, "mock", virtualTargetClassName="mock", minAvailableReplicas=1, drivers=[])
    for name in ("qemu", "mock"):
        until(lab, name, availableReplicas=1)
    metrics = lab.kubectl("get", "--raw", "/metrics").stdout
    for name in ("qemu", "mock"):
        labels = f'namespace="default",pool="{name}",state="available"'
        assert f"bullpen_pool_replicas{{{labels}}} 1.0" in metrics
    lab.kubectl("delete", "exporterset", "qemu", "mock")
