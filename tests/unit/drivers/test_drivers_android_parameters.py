"""The files and command lines of an Android emulator, and what is wrong with parameters."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from bullpen.api.exporter_template import Driver
from bullpen.drivers.adb_protocol import adb_command
from bullpen.drivers.android_parameters import (
    AndroidParameters,
    AndroidPorts,
    AndroidResources,
    avd_files,
    emulator_command,
    environment,
)
from bullpen.provisioners.android import DRIVER, PUBLISHED_DRIVER, AndroidRecipe
from bullpen.provisioners.base import Artifact, Profile, Site

IMAGE = {"systemImage": "system-images/android-34/google_apis/x86_64"}
PORTS = AndroidPorts(console=5556, server=40001)


def causes(**given: Any) -> list[tuple[str, str]]:
    return [(cause.field, cause.message) for cause in AndroidRecipe().check(given)]


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({}, "parameters.systemImage", "Required"),
        ({"systemImage": "a b"}, "parameters.systemImage", "should match"),
        ({**IMAGE, "sdk": "sdk"}, "parameters.sdk", "should match"),
        ({**IMAGE, "accel": "auto"}, "parameters.accel", "Unsupported value"),
        ({**IMAGE, "extraArguments": ["-port"]}, "parameters.extraArguments[0]", "is decided for"),
        ({**IMAGE, "extraArguments": ["-qemu"]}, "parameters.extraArguments[0]", "is decided for"),
        ({**IMAGE, "hardware": {"a b": "1"}}, "parameters.hardware.a b", "is not the name"),
        ({**IMAGE, "hardware": {"a": "1\nb=2"}}, "parameters.hardware.a", "must be one line"),
        (
            {**IMAGE, "hardware": {"hw.ramSize": "9"}},
            "parameters.hardware.hw.ramSize",
            "by another parameter",
        ),
        ({**IMAGE, "readable": ["opt"]}, "parameters.readable[0]", "not an absolute path"),
        ({**IMAGE, "apks": [{"url": "https://a/b"}]}, "parameters.apks[0]", "needs a digest"),
    ],
)
def test_what_cannot_work_is_refused_by_its_path(
    given: dict[str, Any], field: str, words: str
) -> None:
    found = causes(**given)
    assert [name for name, _ in found] == [field]
    assert words in found[0][1]


def test_the_published_driver_is_refused_because_it_shows_all_emulators() -> None:
    published = (Driver(name="phone", type=PUBLISHED_DRIVER),)
    (cause,) = AndroidRecipe().check(IMAGE, published)
    assert cause.field == "drivers[0].type"
    assert f"use {DRIVER}" in cause.message


def test_a_device_has_two_files_with_what_its_class_wants() -> None:
    wanted = AndroidParameters(
        system_image="/images/34",
        api_level=34,
        resources=AndroidResources(cpu=4, memory="3Gi", storage="8Gi"),
        hardware={"hw.gps": "no"},
    )
    files = avd_files(wanted, "/dir")
    assert files["/dir/avd/target.ini"].splitlines() == [
        "avd.ini.encoding=UTF-8",
        "path=/dir/avd/target.avd",
        "target=android-34",
    ]
    config = files["/dir/avd/target.avd/config.ini"].splitlines()
    assert {
        "abi.type=x86_64",
        "disk.dataPartition.size=8589934592",
        "hw.cpu.ncore=4",
        "hw.gps=no",
        "hw.ramSize=3072",
        "image.sysdir.1=/images/34/",
    } <= set(config)
    assert config == sorted(config)


def test_emulator_and_adb_share_files_ports_and_keys_with_nothing_else() -> None:
    wanted = AndroidParameters(system_image="image", extra_arguments=("-no-sim",))
    emulator = emulator_command(wanted, directory="/dir", ports=PORTS)
    values = environment(wanted, directory="/dir", ports=PORTS)
    server = adb_command("/dir", PORTS.server, values)
    for line in (emulator, server):
        assert {
            "HOME=/dir",
            "ANDROID_AVD_HOME=/dir/avd",
            "ANDROID_USER_HOME=/dir/.android",
            "ANDROID_ADB_SERVER_PORT=40001",
            "ADB_EMU=0",
            "ADB_USB=0",
        } <= set(line)
    assert server[-5:] == ("adb", "-P", "40001", "server", "nodaemon")
    assert emulator[emulator.index("-port") + 1] == "5556"
    assert emulator[emulator.index("-accel") + 1] == "on"
    assert "/opt/android-sdk/emulator/emulator" in emulator
    assert emulator[-1] == "-no-sim"
    assert (PORTS.device, PORTS.serial) == (5557, "emulator-5556")


@pytest.mark.parametrize(
    ("given", "arch"),
    [({}, "x86_64"), ({"abi": "arm64-v8a"}, "aarch64"), ({"accel": "none"}, "")],
)
def test_a_device_needs_kvm_unless_its_class_says_otherwise(
    given: dict[str, Any], arch: str
) -> None:
    profile = Profile(provisioner="android.jumpstarter.dev", parameters={**IMAGE, **given})
    needs = AndroidRecipe().needs(profile)
    assert needs.kvm_for == arch
    assert [program.package for program in needs.programs] == ["adb"]
    assert Artifact(path="/opt/android-sdk", may_be_directory=True) in needs.artifacts


@pytest.mark.parametrize(
    ("boot_timeout", "given", "seconds"),
    [
        (timedelta(0), {}, None),
        (timedelta(0), {"readySeconds": 30}, 30),
        (timedelta(minutes=20), {}, 1200),
        (timedelta(minutes=20), {"readySeconds": 30}, 30),
        (timedelta(minutes=1), {"readySeconds": 900}, 60),
        (timedelta(hours=9), {}, 3600),
    ],
)
def test_booting_takes_no_longer_than_the_boot_timeout_of_the_class(
    boot_timeout: timedelta, given: dict[str, int], seconds: int | None
) -> None:
    profile = Profile(
        provisioner="android.jumpstarter.dev",
        parameters={**IMAGE, **given},
        boot_timeout=boot_timeout,
    )
    exported: Any = AndroidRecipe().export(profile, Site(artifacts={}))
    assert exported["target"]["config"]["target"].get("readySeconds") == seconds
