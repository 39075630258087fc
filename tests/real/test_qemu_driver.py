"""Our QEMU driver with real machines, used through the published client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from jumpstarter.common.exceptions import JumpstarterException
from jumpstarter.common.utils import serve

from support.mounts import tmpfs
from support.qemu_machine import ADDRESS, FIRMWARE, MIB, machine, make, prompt, told
from support.real_service import eventually

pytestmark = pytest.mark.real


def test_disks_live_as_long_as_the_driver_and_start_from_their_base(tmp_path: Path) -> None:
    base = tmp_path / "base.raw"
    base.write_bytes(b"from the base" + bytes(4 * MIB))
    disks = [{"name": "root", "base": str(base), "format": "raw", "size": 8 * MIB}]
    address = "${kernel_addr_r}"
    read = f"virtio read {address} 0 1; md.b {address} 8"
    for _ in range(2):
        with machine(disks=disks) as client:
            with prompt(client) as console:
                assert "8.0 MB" in told(console, "virtio info")
                assert "from the" in told(console, read)
                told(console, f"mw.l {address} 41414141 8; virtio write {address} 0 1")
                assert "AAAAAAAA" in told(console, read)
            client.power.off()
            with prompt(client) as console:
                assert "AAAAAAAA" in told(console, read), "it survives power"
    assert base.read_bytes().startswith(b"from the base"), "and never reaches the base"


def test_what_is_flashed_replaces_the_disk(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"flashed!" + bytes(MIB - 8))
    with machine(disks=[{"name": "root", "size": 8 * MIB}]) as client:
        client.flasher.flash(str(image), target="root")
        with prompt(client) as console:
            address = "${kernel_addr_r}"
            assert "flashed!" in told(console, f"virtio read {address} 0 1; md.b {address} 8")
            assert "8.0 MB" in told(console, "virtio info"), "and is as large as declared"


def test_what_was_flashed_can_be_read_back(tmp_path: Path) -> None:
    image, dumped = tmp_path / "image", tmp_path / "dumped"
    image.write_bytes(b"flashed!" + bytes(MIB - 8))
    with machine(disks=[{"name": "root", "size": 8 * MIB}]) as client:
        client.flasher.flash(str(image), target="root")
        client.flasher.dump(str(dumped), target="root")
    assert dumped.read_bytes() == image.read_bytes()


def test_a_machine_that_does_not_start_says_what_qemu_said() -> None:
    with (
        machine(extra_args=["-no-such-option"]) as client,
        pytest.raises(JumpstarterException, match="no-such-option: invalid option"),
    ):
        client.power.on()


def test_forwarded_ports_are_free_ones_and_differ_between_machines() -> None:
    drivers = [make(forwards={"ssh": 22, "web": 80}) for _ in range(2)]
    with contextlib.ExitStack() as stack:
        ports = []
        for driver in drivers:
            stack.callback(driver.close)
            stack.enter_context(serve(driver)).power.on()
            ports += [driver.children[name].port for name in ("ssh", "web")]
        assert len(set(ports)) == 4
        for port in ports:
            socket.create_connection(("127.0.0.1", port)).close()


def test_a_console_opened_late_misses_nothing_and_stays_open_over_power() -> None:
    with machine() as client:
        client.power.on()
        time.sleep(2)
        with client.console.pexpect() as console:
            console.expect("U-Boot 20", timeout=120)
            console.expect("autoboot", timeout=120)
            client.power.off()
            client.power.on()
            console.expect("U-Boot 20", timeout=120)


def test_switching_on_twice_and_off_twice_is_no_problem() -> None:
    with machine() as client:
        client.power.off()
        client.power.on()
        client.power.on()
        children = [p for p in psutil.Process().children() if p.name().startswith("qemu")]
        assert len(children) == 1
        client.power.off()
        client.power.off()
        assert not children[0].is_running()


def test_nothing_is_left_when_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with machine(disks=[{"name": "root", "size": MIB}]) as client:
        client.power.on()
        assert list(tmp_path.rglob("root.overlay"))
    assert [path for path in tmp_path.rglob("*") if "jumpstarter" not in str(path)] == []


def test_disks_are_left_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with machine(disks=[{"name": "root", "size": MIB}], retain=True):
        pass
    assert list(tmp_path.iterdir()) == [], "nothing was on it"
    with machine(disks=[{"name": "root", "size": MIB}], retain=True) as client:
        client.power.on()
    assert [path.name for path in tmp_path.rglob("*.overlay")] == ["root.overlay"]


def test_a_machine_whose_host_is_full_is_paused_and_goes_on(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", megabytes=4) as small:
        disk = small.path / "root.qcow2"
        create = ["qemu-img", "create", "-q", "-f", "qcow2", str(disk), "16M"]
        subprocess.run(create, check=True)
        driver = make(
            default_partitions={"bios": FIRMWARE},
            site={"lasting": True, "disks": [{"name": "root", "path": str(disk)}]},
        )
        with serve(driver) as client:
            with prompt(client) as console:
                console.sendline(f'virtio write {ADDRESS} 0 4000; echo "do""ne"')

                def paused() -> str:
                    return str(asyncio.run(driver.paused()))

                eventually(lambda: bool(paused()), seconds=120, what="a machine without space")
                assert paused() == "its host has no space for disk root"
                small.remount("size=40m")
                eventually(lambda: not paused(), seconds=120, what="a machine that goes on")
                console.expect("16384 blocks written: OK", timeout=120)
            client.power.off()
            assert asyncio.run(driver.paused()) == ""
        driver.close()
        subprocess.run(["qemu-img", "check", "-q", str(disk)], check=True)
