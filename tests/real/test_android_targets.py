"""Targets that are Android emulators: Debian's adb, with a stand-in for the emulator."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jumpstarter.common.exceptions import JumpstarterException
from jumpstarter.common.utils import serve
from jumpstarter_driver_adb.client import AdbClient
from jumpstarter_driver_androidemulator.client import AndroidEmulatorClient

from bullpen.drivers.android import AndroidEmulator
from bullpen.testing import android_emulator_stand_in
from support.qemu_pools import shell, until
from support.real_service import BIN, Service

pytestmark = pytest.mark.real

STAND_IN = android_emulator_stand_in.__file__
NEVER_BOOTS = {"standin.bootSeconds": "1000"}
SECONDS = 60


@pytest.fixture
def sdk(tmp_path: Path) -> Path:
    """An SDK without anything in it but a place for the system image."""
    path = tmp_path / "sdk"
    (path / "image").mkdir(parents=True)
    return path


def parameters(sdk: Path, **more: Any) -> dict[str, Any]:
    return {
        "sdk": str(sdk),
        "systemImage": "image",
        "emulator": STAND_IN,
        "accel": "none",
        "readySeconds": SECONDS,
        **more,
    }


def package(directory: Path, name: str) -> Path:
    path = directory / f"{name}.apk"
    path.write_bytes(b"package:" + name.encode() + b"\n" + bytes(200_000))
    return path


@contextlib.contextmanager
def target(document: dict[str, Any]) -> Iterator[Any]:
    make: Any = AndroidEmulator
    driver = make(target=document)
    with serve(driver) as client:
        assert isinstance(client, AndroidEmulatorClient)
        assert isinstance(client.adb, AdbClient)
        yield client
    driver.close()


@contextlib.contextmanager
def adb(client: Any) -> Iterator[Any]:
    """Debian's adb as a lessee uses it: with the target's server, through the tunnel."""
    with client.adb.forward_adb() as (host, port):

        def run(*words: str) -> str:
            line = ["adb", "-H", host, "-P", str(port), *words]
            done = subprocess.run(
                line, capture_output=True, text=True, timeout=SECONDS, check=False
            )
            return done.stdout + done.stderr

        yield run


def test_a_device_boots_and_is_used_with_adb(sdk: Path, tmp_path: Path) -> None:
    given, own = package(tmp_path, "com.example.given"), package(tmp_path, "com.example.own")
    with target(parameters(sdk, apks=[{"path": str(given)}])) as client:
        assert "emulator" not in client.adb.list_devices()
        client.power.on()
        with adb(client) as run:
            device(run)
            assert run("shell", "getprop", "hw.ramSize") == "2048\n"
            assert "Success" in run("install", str(own))
            installed = run("shell", "pm", "list", "packages").split()
            assert installed == ["package:com.example.given", "package:com.example.own"]
        with client.console.pexpect() as line:
            line.expect_exact("$ ", timeout=SECONDS)
            line.sendline("echo hello from the device")
            line.expect_exact("\nhello from the device", timeout=SECONDS)
        client.power.off()
        assert [reading.voltage for reading in client.power.read()] == [0.0]


def device(run: Any) -> list[str]:
    """The one device of the target, ready."""
    rows = [row.split() for row in run("devices").splitlines()[1:] if row]
    assert len(rows) == 1, rows
    assert rows[0][0].startswith("emulator-")
    assert rows[0][1] == "device"
    return list(rows[0])


def test_two_targets_see_their_own_device_only_and_keep_its_data(sdk: Path) -> None:
    with target(parameters(sdk)) as one, target(parameters(sdk)) as other:
        assert "emulator" not in one.adb.list_devices() + other.adb.list_devices()
        one.power.on()
        other.power.on()
        with adb(one) as run_one, adb(other) as run_other:
            assert device(run_one) != device(run_other)
            run_one("shell", "echo", "mine", ">", "kept")
            assert "not found" in run_other("shell", "cat", "kept")
            one.power.cycle(0)
            assert run_one("shell", "cat", "kept") == "mine\n"
            one.adb.kill_server()
            assert one.adb.start_server() > 0
            device(run_one)


def test_a_package_that_is_none_is_named(sdk: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.apk"
    wrong.write_text("nothing")
    with target(parameters(sdk, apks=[{"path": str(wrong)}])) as client:
        with pytest.raises(JumpstarterException, match=r"did not install .*wrong\.apk: Failure"):
            client.power.on()
        assert [reading.voltage for reading in client.power.read()] == [0.0]


def test_an_emulator_that_does_not_start_says_why(sdk: Path) -> None:
    with (
        target(parameters(sdk, systemImage="missing")) as client,
        pytest.raises(JumpstarterException, match=r"the program ended.*Cannot find AVD system"),
    ):
        client.power.on()
    with (
        target(parameters(sdk, readySeconds=1, hardware=NEVER_BOOTS)) as client,
        pytest.raises(JumpstarterException, match="Android did not boot within 1 s"),
    ):
        client.power.on()


def test_without_kvm_a_slow_device_has_to_be_asked_for(sdk: Path) -> None:
    with (
        target(parameters(sdk, accel="kvm")) as client,
        pytest.raises(JumpstarterException, match=r"KVM does not work on this host.*accel: none"),
    ):
        client.power.on()


def test_a_pool_of_devices_is_leased_like_any_other(service: Service, sdk: Path) -> None:
    for path in (sdk, sdk / "image", *sdk.parents[:4]):
        path.chmod(path.stat().st_mode | 0o055)
    labels = {"board": "android"}
    document = parameters(sdk, resources={"memory": "64Mi", "cpu": 1, "storage": "64Mi"})
    manifests = [
        {
            "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
            "kind": "VirtualTargetClass",
            "metadata": {"name": "android"},
            "spec": {"provisioner": "android.jumpstarter.dev", "parameters": document},
        },
        {
            "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
            "kind": "ExporterSet",
            "metadata": {"name": "android"},
            "spec": {
                "virtualTargetClassName": "android",
                "minAvailableReplicas": 1,
                "maxReplicas": 2,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}},
            },
        },
    ]
    service.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(manifests))
    until(service, "android", availableReplicas=1)
    script = "j power on && j target adb -- shell getprop hw.ramSize"
    process = shell(service, "android", "bash", "-c", f"PATH={BIN}:$PATH; {script}")
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "\n64\n" in said
