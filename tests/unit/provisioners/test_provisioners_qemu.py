"""What to run for a QEMU target: parameters in, the driver of the exporter out."""

from __future__ import annotations

import platform
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jumpstarter.config.exporter import ExporterConfigV1Alpha1DriverInstance
from jumpstarter_driver_qemu import driver as published

from bullpen.api import codec
from bullpen.api.exporter_template import Driver
from bullpen.api.paths import encode
from bullpen.drivers.qemu import Qemu
from bullpen.drivers.qemu_command import Machine
from bullpen.drivers.qemu_images import Disk
from bullpen.drivers.qemu_parameters import Accel, HostForward, NetworkAccess, QemuParameters
from bullpen.drivers.target_files import File
from bullpen.provisioners.base import Artifact, Needs, Profile, Site
from bullpen.provisioners.qemu import (
    DRIVER,
    NAME,
    OVERHEAD_BYTES,
    OVERHEAD_BYTES_MAX,
    PUBLISHED_DRIVER,
    QEMU_IMG,
    QemuRecipe,
    emulator,
)

RECIPE = QemuRecipe(host_arch="x86_64")
DIGEST = f"sha256:{'a' * 64}"
MIB = 1 << 20


def profile(
    parameters: dict[str, Any] | None = None, *drivers: Driver, retain: bool = False
) -> Profile:
    return Profile(provisioner=NAME, parameters=parameters or {}, drivers=drivers, retain=retain)


def site(wanted: Profile, *, kvm: bool = False) -> Site:
    """Everything that is needed, found under a name that says what it is."""
    needed = RECIPE.needs(wanted).artifacts
    return Site(artifacts={a: Path(a.path or f"/cache/{a.digest[-4:]}") for a in needed}, kvm=kvm)


@pytest.fixture(autouse=True)
def runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def machine(parameters: dict[str, Any], *drivers: Driver, kvm: bool = False) -> Qemu:
    """The driver that an exporter creates for these parameters."""
    wanted = profile(parameters, *drivers)
    assert RECIPE.check(wanted.parameters, wanted.drivers) == ()
    found = next(iter(RECIPE.export(wanted, site(wanted, kvm=kvm)).values()))
    driver = ExporterConfigV1Alpha1DriverInstance.model_validate_json(encode(found)).instantiate()
    assert isinstance(driver, Qemu)
    driver.close()
    return driver


async def machine_on(parameters: dict[str, Any], *, kvm: bool = False) -> Machine:
    return await machine(parameters, kvm=kvm).machine(qmp=3, serial=4, cidata="")


def test_a_set_without_drivers_exports_the_machine_its_power_and_its_console() -> None:
    wanted = profile({"arch": "aarch64"})

    assert RECIPE.export(wanted, site(wanted)) == {
        "qemu": {
            "type": DRIVER,
            "config": {"target": {"arch": "aarch64"}, "site": {"arch": "x86_64"}},
        },
        "power": {"ref": "qemu.power"},
        "serial": {"ref": "qemu.console"},
    }


def test_every_parameter_determines_the_machine_of_the_driver() -> None:
    parameters = {
        "arch": "aarch64",
        "machineType": "virt,highmem=off",
        "cpu": "cortex-a72",
        "accel": "kvm",
        "resources": {"cpu": 4, "memory": "1.5Gi", "storage": "16Gi"},
        "firmware": {"path": "/u-boot.bin"},
        "kernel": {"path": "/vmlinuz"},
        "initrd": {"url": "https://lab/initrd", "digest": DIGEST},
        "append": "console=ttyAMA0",
        "disks": [
            {"name": "root", "base": {"path": "/debian.qcow2"}},
            {"name": "data", "size": "1G"},
            {"name": "iso", "base": {"path": "/cd.img", "format": "raw"}, "size": 2_000_000},
        ],
        "hostfwd": {"ssh": {"guestPort": 22}},
        "network": "user",
        "fetchFrom": ["*.example.org", "10.0.0.0/8"],
        "extraArguments": ["-rtc", "base=utc"],
    }
    driver = machine(parameters)

    assert driver.parameters == codec.decode(QemuParameters, parameters)
    assert (driver.arch, driver.smp, driver.mem) == ("aarch64", 4, "1536M")
    assert driver.default_partitions == {"bios": Path("/u-boot.bin")}
    assert list(driver._disks.values()) == [
        Disk(name="root", base=Path("/debian.qcow2"), format="qcow2", size=16 << 30),
        Disk(name="data", size=10**9),
        Disk(name="iso", base=Path("/cd.img"), format="raw", size=2_000_000),
    ]
    assert driver.parameters.initrd is not None
    assert driver.machine_site.path(driver.parameters.initrd) == "/cache/aaaa"
    assert "ssh" in driver.children


def test_firmware_with_variables_is_flash_memory() -> None:
    firmware = {"path": "/OVMF_CODE.fd", "variables": {"path": "/OVMF_VARS.fd"}}
    assert machine({"firmware": firmware}).default_partitions == {
        "OVMF_CODE.fd": Path("/OVMF_CODE.fd"),
        "OVMF_VARS.fd": Path("/OVMF_VARS.fd"),
    }


def test_storage_alone_is_an_empty_root_disk() -> None:
    driver = machine({"resources": {"storage": "10Gi"}})
    assert driver._disks == {"root": Disk(name="root", size=10 << 30)}


def test_a_disks_own_size_wins_over_storage() -> None:
    disks = [{"name": "root", "size": "1Gi"}]
    driver = machine({"resources": {"storage": "10Gi"}, "disks": disks})
    assert driver._disks == {"root": Disk(name="root", size=1 << 30)}


SETTINGS: dict[str, object] = {
    "cpu": "max",
    "machine_type": "microvm",
    "accel": "tcg",
    "kernel": "/other",
    "initrd": "",
    "append": "quiet",
    "forwards": {"web": 80},
    "network": "restricted",
    "fetch_from": [],
    "extra_args": ["-no-reboot"],
}


def test_settings_of_the_driver_in_a_template_override_the_parameters() -> None:
    parameters = {
        "accel": "kvm",
        "append": "console=ttyS0",
        "initrd": {"path": "/initrd"},
        "hostfwd": {"ssh": {"guestPort": 22}},
        "network": "user",
        "fetchFrom": ["example.org"],
        "disks": [{"name": "root", "size": "1Gi"}],
        "firmware": {"path": "/bios"},
    }
    own = {"disks": [{"name": "data", "size": 5}], "default_partitions": {"bios": "/mine"}}
    template = Driver(name="board", type=PUBLISHED_DRIVER, config={**SETTINGS, **own})
    driver = machine(parameters, template)

    assert driver.parameters == replace(
        codec.decode(QemuParameters, parameters),
        cpu="max",
        machine_type="microvm",
        accel=Accel.TCG,
        kernel=File(path="/other"),
        initrd=None,
        append="quiet",
        hostfwd={"web": HostForward(guest_port=80)},
        network=NetworkAccess.RESTRICTED,
        fetch_from=(),
        extra_arguments=("-no-reboot",),
    )
    assert driver._disks == {"data": Disk(name="data", size=5)}
    assert driver.default_partitions == {"bios": Path("/mine")}


def test_a_driver_without_a_class_has_the_published_defaults() -> None:
    driver = Qemu()  # type: ignore[abstract]
    driver.close()
    defaults = {found.name: found for found in fields(published.Qemu)}

    for name in ("cpu", "smp", "mem", "disk_size"):
        assert getattr(driver, name) == defaults[name].default
    assert (driver.arch, driver.default_partitions) == (platform.machine(), {})


@pytest.mark.parametrize(
    ("parameters", "kvm", "asked_for", "accel"),
    [
        pytest.param({}, True, "x86_64", "kvm", id="auto uses KVM where it is proven"),
        pytest.param({}, False, "x86_64", "tcg", id="auto emulates where it is not"),
        pytest.param({"arch": "aarch64"}, False, "", "tcg", id="a foreign guest never asks"),
        pytest.param({"accel": "tcg"}, True, "", "tcg", id="tcg is tcg"),
        pytest.param({"accel": "kvm"}, False, "", "kvm", id="kvm is kvm, working or not"),
    ],
)
async def test_the_accelerator(
    parameters: dict[str, Any], kvm: bool, asked_for: str, accel: str
) -> None:
    assert RECIPE.needs(profile(parameters)).kvm_for == asked_for
    assert (await machine_on(parameters, kvm=kvm)).kvm is (accel == "kvm")


def test_what_it_needs_is_counted_and_each_file_is_named_once() -> None:
    base = {"url": "https://lab/base", "digest": DIGEST}
    needs = RECIPE.needs(
        profile(
            {
                "resources": {"cpu": 2, "memory": "256Mi"},
                "firmware": {"path": "/u-boot.bin"},
                "disks": [{"name": "root", "base": base}, {"name": "data", "base": base}],
            }
        )
    )
    assert needs == Needs(
        memory_bytes=256 * MIB + OVERHEAD_BYTES,
        cpus=2,
        memory_bytes_max=256 * MIB + OVERHEAD_BYTES_MAX,
        cpus_max=3,
        programs=(emulator("x86_64"), QEMU_IMG),
        artifacts=(
            Artifact(path="/u-boot.bin"),
            Artifact(url="https://lab/base", digest=DIGEST),
        ),
        kvm_for="x86_64",
        runtime="qemu",
    )


def test_the_published_driver_is_replaced_by_ours_and_its_settings_win() -> None:
    wanted = profile(
        {"arch": "aarch64", "resources": {"cpu": 4}},
        Driver(name="board", type=PUBLISHED_DRIVER, config={"smp": 2, "disk_size": "10G"}),
        Driver(name="tcp", type="jumpstarter_driver_network.driver.TcpNetwork", config={"port": 1}),
        Driver(name="on", ref="board.power"),
    )
    assert RECIPE.check(wanted.parameters, wanted.drivers) == ()
    exported = RECIPE.export(wanted, site(wanted))
    board = machine({"arch": "aarch64", "resources": {"cpu": 4}}, *wanted.drivers)

    assert list(exported) == ["board", "tcp", "on"]
    assert exported["board"]["type"] == DRIVER
    assert (board.smp, board.arch, board.disk_size) == (2, "aarch64", "10G")
    assert exported["tcp"]["config"] == {"port": 1}


def test_drivers_without_a_machine_get_one() -> None:
    wanted = profile({}, Driver(name="power", ref="qemu.power"))

    assert RECIPE.check(wanted.parameters, wanted.drivers) == ()
    assert list(RECIPE.export(wanted, site(wanted))) == ["qemu", "power"]


def test_what_is_retained_tells_the_driver_to_leave_its_disks() -> None:
    wanted = profile({}, retain=True)
    assert RECIPE.export(wanted, site(wanted))["qemu"]["config"]["retain"] is True


@pytest.mark.parametrize(
    ("parameters", "drivers", "path"),
    [
        pytest.param({"arch": "vax"}, (), "parameters.arch", id="an unknown architecture"),
        pytest.param({"machine": "virt"}, (), "parameters.machine", id="an unknown word"),
        pytest.param(
            {"firmware": {"url": "https://lab/x"}}, (), "parameters.firmware", id="no digest"
        ),
        pytest.param(
            {"firmware": {"path": "u-boot.bin"}}, (), "parameters.firmware.path", id="no root"
        ),
        pytest.param(
            {"firmware": {"url": "ftp://lab/x", "digest": DIGEST}},
            (),
            "parameters.firmware.url",
            id="a scheme nobody fetches",
        ),
        pytest.param(
            {"firmware": {"path": "/x", "variables": {}}},
            (),
            "parameters.firmware.variables",
            id="a rule deep inside",
        ),
        pytest.param(
            {"disks": [{"name": "a", "size": 1}, {"name": "a", "size": 1}]},
            (),
            "parameters.disks[1]",
            id="two disks of one name",
        ),
        pytest.param({"disks": [{"name": "a"}]}, (), "parameters.disks[0]", id="an empty disk"),
        pytest.param(
            {"disks": [{"name": "a/b", "size": 1}]}, (), "parameters.disks[0].name", id="a path"
        ),
        pytest.param(
            {"resources": {"memory": "1Ki"}}, (), "parameters.resources.memory", id="too little"
        ),
        pytest.param(
            {"resources": {"memory": "lots"}}, (), "parameters.resources.memory", id="no quantity"
        ),
        pytest.param(
            {"hostfwd": {"console": {"guestPort": 22}}},
            (),
            "parameters.hostfwd.console",
            id="a forward that would hide the console",
        ),
        pytest.param(
            {"extraArguments": "-rtc"}, (), "parameters.extraArguments", id="text for a list"
        ),
        pytest.param(
            {}, (Driver(name="power", ref="board.power"),), "drivers[0].ref", id="a loose reference"
        ),
        pytest.param(
            {}, (Driver(name="qemu", type="a.B"),), "drivers[0].name", id="the machine's name taken"
        ),
    ],
)
def test_a_mistake_is_named_by_its_path(
    parameters: dict[str, Any], drivers: tuple[Driver, ...], path: str
) -> None:
    assert [cause.field for cause in RECIPE.check(parameters, drivers)] == [path]


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
words = st.sampled_from(
    ("arch", "accel", "resources", "firmware", "disks", "hostfwd", "extraArguments", "cpu")
)


@given(st.dictionaries(words, json, max_size=4))
def test_any_parameters_are_either_refused_or_rendered(parameters: dict[str, Any]) -> None:
    wanted = profile(parameters)
    if not RECIPE.check(parameters):
        assert "qemu" in RECIPE.export(wanted, site(wanted))


def test_what_the_template_says_about_the_machine_is_accounted_for() -> None:
    driver = Driver(name="board", type=PUBLISHED_DRIVER, config={"mem": "2G", "smp": 3})
    needs = RECIPE.needs(profile({"resources": {"memory": "128Mi"}}, driver))
    assert (needs.memory_bytes, needs.cpus) == ((2 << 30) + OVERHEAD_BYTES, 3)


@pytest.mark.parametrize(
    ("name", "value"), [("mem", "lots"), ("mem", -1), ("disk_size", "8 GB"), ("smp", "two")]
)
def test_a_size_in_a_template_that_cannot_be_read_is_a_mistake(name: str, value: object) -> None:
    driver = Driver(name="board", type=DRIVER, config={name: value})
    (cause,) = RECIPE.check({}, (driver,))
    assert cause.field == f"drivers[0].config.{name}"


@pytest.mark.parametrize("entry", ["http://example.org", "10.0.0.1/8", "a b", "", "*.*", "x/24"])
def test_a_source_that_is_neither_a_name_nor_a_network_is_a_mistake(entry: str) -> None:
    (cause,) = RECIPE.check({"fetchFrom": ["example.org", entry]})
    assert cause.field == "parameters.fetchFrom[1]"
