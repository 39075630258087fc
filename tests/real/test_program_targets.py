"""Targets that are programs with a console: every kind of console, flashing, ports, a pool."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jumpstarter.common.exceptions import JumpstarterException
from jumpstarter.common.utils import serve

from bullpen.drivers.program import Program
from support import simulated_board
from support.qemu_machine import refusal
from support.qemu_pools import shell, until
from support.real_service import BIN, Service

pytestmark = pytest.mark.real

BOARD = Path(simulated_board.__file__)
PYTHON = "/usr/bin/python3"
CONSOLES = {
    "stdio": "stdio",
    "pty": "pty",
    "tcp": "tcp:{port:console}",
    "unix": "unix:{socket}",
}


@pytest.fixture
def firmware(tmp_path: Path) -> Path:
    path = tmp_path / "first.bin"
    path.write_bytes(b"first firmware")
    return path


def parameters(firmware: Path | None, console: str = "stdio", **more: Any) -> dict[str, Any]:
    arguments = [str(BOARD), "{firmware}", CONSOLES[console], *more.pop("extra", ())]
    return {
        "program": PYTHON,
        "arguments": arguments,
        "console": console,
        "readable": [str(BOARD)],
        "ready": "> $",
        **({"firmware": {"path": str(firmware)}} if firmware else {}),
        **more,
    }


@contextlib.contextmanager
def target(document: dict[str, Any]) -> Iterator[Any]:
    make: Any = Program
    driver = make(target=document)
    with serve(driver) as client:
        yield client
    driver.close()


@pytest.mark.parametrize("console", sorted(CONSOLES))
def test_every_kind_of_console_carries_both_directions(console: str, firmware: Path) -> None:
    with target(parameters(firmware, console)) as client:
        for _ in range(2):
            client.power.on()
            with client.console.pexpect() as line:
                line.expect("board runs first firmware", timeout=120)
                line.expect("> ", timeout=120)
                line.sendline("hello")
                line.expect("echo hello", timeout=120)
            client.power.off()


def test_a_power_cycle_starts_afresh_under_an_open_console(firmware: Path) -> None:
    with target(parameters(firmware)) as client:
        client.power.on()
        with client.console.pexpect() as line:
            line.expect("board runs", timeout=120)
            client.power.cycle(0)
            line.expect("board runs", timeout=120)
            line.sendline("again")
            line.expect("echo again", timeout=120)


def test_firmware_is_flashed_and_used_from_the_next_start(firmware: Path, tmp_path: Path) -> None:
    image, dumped = tmp_path / "second.bin", tmp_path / "dumped"
    image.write_bytes(b"second firmware")
    with target(parameters(firmware)) as client:
        client.flasher.flash(str(image))
        client.power.on()
        with client.console.pexpect() as line:
            line.expect("board runs second firmware", timeout=120)
        with refusal("switch it off first"):
            client.flasher.flash(str(image))
        client.power.off()
        client.flasher.dump(str(dumped))
    assert dumped.read_bytes() == b"second firmware"


def test_without_firmware_the_error_says_what_to_do(tmp_path: Path) -> None:
    with target(parameters(None)) as client:
        with pytest.raises(JumpstarterException, match="no firmware; flash one"):
            client.power.on()
        image = tmp_path / "image"
        image.write_bytes(b"flashed")
        client.flasher.flash(str(image))
        client.power.on()


def test_ports_of_the_program_are_drivers(firmware: Path) -> None:
    document = parameters(firmware, ports={"web": {}}, extra=["web:{port:web}"])
    with target(document) as client:
        client.power.on()
        with client.web.stream() as stream:
            assert stream.receive() == b"hello from the board"


def test_a_program_that_ends_says_what_it_printed(firmware: Path) -> None:
    document = {**parameters(firmware), "arguments": ["-c", "import sys; sys.exit('no licence')"]}
    with (
        target(document) as client,
        pytest.raises(JumpstarterException, match=r"the program ended.*no licence"),
    ):
        client.power.on()


def test_a_program_that_never_gets_ready_is_stopped(firmware: Path) -> None:
    with target(parameters(firmware, ready="login:", readySeconds=1)) as client:
        with pytest.raises(JumpstarterException, match="did not print 'login:' within 1 s"):
            client.power.on()
        assert [reading.voltage for reading in client.power.read()] == [0.0]


def test_too_large_firmware_is_refused(firmware: Path, tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(2 << 20))
    with (
        target(parameters(firmware, resources={"firmware": "1Mi"})) as client,
        refusal("the class of this target grants at most"),
    ):
        client.flasher.flash(str(image))


def test_a_pool_of_programs_is_leased_like_any_other(service: Service, tmp_path: Path) -> None:
    """In its sandbox: a fetched firmware, a terminal of the program's own, and a port."""
    for path in (tmp_path, *tmp_path.parents[:3]):
        path.chmod(path.stat().st_mode | 0o055)
    firmware = tmp_path / "pool.bin"
    firmware.write_bytes(b"pool firmware")
    document = parameters(firmware, "pty", ports={"web": {}}, extra=["web:{port:web}"])
    document["readable"] = [str(BOARD.parent)]
    labels = {"board": "programs"}
    manifests = [
        {
            "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
            "kind": "VirtualTargetClass",
            "metadata": {"name": "programs"},
            "spec": {"provisioner": "program.bullpen.dev", "parameters": document},
        },
        {
            "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
            "kind": "ExporterSet",
            "metadata": {"name": "programs"},
            "spec": {
                "virtualTargetClassName": "programs",
                "minAvailableReplicas": 1,
                "maxReplicas": 2,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}},
            },
        },
    ]
    service.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(manifests))
    until(service, "programs", availableReplicas=1)
    script = (
        "from jumpstarter.utils.env import env\n"
        "with env() as client:\n"
        "    client.power.on()\n"
        "    with client.serial.pexpect() as line:\n"
        "        line.expect('board runs pool firmware', timeout=60)\n"
        "        line.sendline('files')\n"
        "        line.expect('echo (.*)> ', timeout=60)\n"
        "        print('ROOT', line.match[1].decode())\n"
        "    with client.target.web.stream() as stream:\n"
        "        print(stream.receive().decode())\n"
    )
    process = shell(service, "programs", str(BIN / "python"), "-c", script)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "hello from the board" in said
    assert "root" not in said.partition("ROOT ")[2].splitlines()[0].split(", "), said
