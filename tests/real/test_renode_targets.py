"""Targets that Renode simulates, with the stand-in, or with a real Renode: ``RENODE=PATH``."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jumpstarter.common.exceptions import JumpstarterException
from jumpstarter.common.utils import serve
from jumpstarter_driver_renode.client import RenodeClient

from bullpen.drivers.renode import SNAPSHOTS_MAX, Renode, pseudo_terminal
from bullpen.testing import renode_stand_in
from support.mcu_firmware import cortex_m3
from support.qemu_pools import shell, until
from support.real_service import BIN, Service

pytestmark = pytest.mark.real

STAND_IN = renode_stand_in.__file__
RENODE = os.environ.get("RENODE") or STAND_IN
"""An installation of Renode reads files beside its program."""

PLATFORM = Path(__file__).parents[2] / "examples" / "cortex-m3.repl"
BANNER = "cortex-m3 is ready"
SECONDS = 60


def parameters(firmware: Path | None, **more: Any) -> dict[str, Any]:
    return {
        "program": RENODE,
        "readable": [str(Path(RENODE).resolve().parent), "/opt/renode"],
        "platform": str(PLATFORM),
        **({"firmware": {"path": str(firmware)}} if firmware else {}),
        **more,
    }


@pytest.fixture
def firmware(tmp_path: Path) -> Path:
    return cortex_m3(tmp_path)


@contextlib.contextmanager
def target(document: dict[str, Any]) -> Iterator[Any]:
    make: Any = Renode
    driver = make(target=document)
    with serve(driver) as client:
        assert isinstance(client, RenodeClient)
        yield client
    driver.close()


def echoes(line: Any, word: str) -> None:
    line.send(word)
    line.expect_exact(word, timeout=SECONDS)


def test_a_board_runs_flashed_firmware_after_every_start(firmware: Path, tmp_path: Path) -> None:
    with target(parameters(None, ready=BANNER)) as client:
        with pytest.raises(JumpstarterException, match="no firmware; flash one"):
            client.power.on()
        client.flasher.flash(str(firmware))
        for _ in range(2):
            client.power.on()
            with client.console.pexpect() as line:
                line.expect_exact(BANNER, timeout=SECONDS)
                echoes(line, "hello")
            client.power.off()
        assert [reading.voltage for reading in client.power.read()] == [0.0]
        with pytest.raises(JumpstarterException, match="the target is off"):
            client.monitor_cmd("pause")


def test_every_uart_is_a_console(firmware: Path) -> None:
    commands = ["sysbus WriteDoubleWord 0x40005008 0x3"]
    commands += [f"sysbus WriteDoubleWord 0x40005000 {ord(letter):#x}" for letter in "hi"]
    document = parameters(firmware, uarts={"radio": "sysbus.uart1"}, extraCommands=commands)
    with target(document) as client:
        client.power.on()
        with client.radio.pexpect() as line:
            line.expect_exact("hi", timeout=SECONDS)
        with client.console.pexpect() as line:
            line.expect_exact(BANNER, timeout=SECONDS)


def test_a_simulation_is_paused_and_reset(firmware: Path) -> None:
    with target(parameters(firmware)) as client:
        client.power.on()
        with client.console.pexpect() as line:
            line.expect_exact(BANNER, timeout=SECONDS)
            assert "Pausing" in client.monitor_cmd("pause")
            line.send("later")
            client.monitor_cmd("start")
            line.expect_exact("later", timeout=SECONDS)
            client.monitor_cmd("machine Reset")
            line.expect_exact(BANNER, timeout=SECONDS)
            echoes(line, "again")


def test_a_simulation_goes_back_to_a_snapshot(firmware: Path) -> None:
    with target(parameters(firmware)) as client:
        client.power.on()
        with client.console.pexpect() as line:
            line.expect_exact(BANNER, timeout=SECONDS)
            client.monitor_cmd("Save @booted")
            for word in ("once", "twice"):
                client.monitor_cmd("Load @booted")
                line.send(word)
                line.expect_exact(word, timeout=SECONDS)
                assert BANNER.encode() not in line.before, "it was restored, not booted"
            with pytest.raises(JumpstarterException, match=r"no snapshot 'other'.*booted"):
                client.monitor_cmd("Load @other")
            for number in range(1, SNAPSHOTS_MAX):
                client.monitor_cmd(f"Save @more-{number}")
            with pytest.raises(JumpstarterException, match="the most a target can have"):
                client.monitor_cmd("Save @one-more")


def test_a_script_creates_the_machine_with_the_firmware_in_bin(
    firmware: Path, tmp_path: Path
) -> None:
    script = tmp_path / "board.resc"
    script.write_text(
        'mach create "scripted"\n'
        f"machine LoadPlatformDescription @{PLATFORM}\n"
        'macro reset\n"""\nsysbus LoadELF $bin\n"""\nrunMacro $reset\n'
    )
    document = {**parameters(firmware), "script": {"path": str(script)}}
    del document["platform"]
    with target(document) as client:
        client.power.on()
        with client.console.pexpect() as line:
            line.expect_exact(BANNER, timeout=SECONDS)


def test_a_class_may_start_from_a_snapshot(firmware: Path, tmp_path: Path) -> None:
    saved = tmp_path / "board.save"
    commands = (
        'mach create "saved"',
        f"machine LoadPlatformDescription @{PLATFORM}",
        f"sysbus LoadELF @{firmware}",
        f"Save @{saved}",
        "quit",
    )
    line = [RENODE, "--console", "--disable-gui", "--plain", "--config", str(tmp_path / "config")]
    subprocess.run(
        line, input="\n".join([*commands, ""]), text=True, check=True, timeout=SECONDS,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    document = {**parameters(None), "snapshot": {"path": str(saved)}}
    del document["platform"]
    with target(document) as client:
        assert "flasher" not in client.children
        client.power.on()
        with client.console.pexpect() as line_of_board:
            line_of_board.expect_exact(BANNER, timeout=SECONDS)
            echoes(line_of_board, "hello")


def test_the_monitor_is_not_for_everything(firmware: Path) -> None:
    with target(parameters(firmware)) as client:
        client.power.on()
        with pytest.raises(JumpstarterException, match="is not allowed on this target; allowed: p"):
            client.monitor_cmd("include @/etc/passwd")
        assert "virtual time" in client.monitor_cmd("currentTime")
    with (
        target(parameters(firmware, allowRawMonitor=True)) as client,
        pytest.raises(JumpstarterException, match="allowRawMonitor needs the sandbox"),
    ):
        client.power.on()


def test_a_link_of_renode_leads_to_its_own_terminal_only(tmp_path: Path) -> None:
    link = tmp_path / "uart"
    link.symlink_to("/dev/pts/7")
    assert pseudo_terminal(link) == "/dev/pts/7"
    for elsewhere in ("/etc/passwd", "/dev/pts/../../etc/passwd", "/dev/pts/7/../ptmx"):
        link.unlink()
        link.symlink_to(elsewhere)
        with pytest.raises(RuntimeError, match="is not a pseudo-terminal"):
            pseudo_terminal(link)


def test_what_renode_refuses_is_in_the_error(firmware: Path) -> None:
    document = parameters(firmware, uart="sysbus.nothing")
    with target(document) as client:
        with pytest.raises(
            JumpstarterException, match=r"did not execute 'connector Connect sysbus\.nothing"
        ):
            client.power.on()
        assert [reading.voltage for reading in client.power.read()] == [0.0]
    with (
        target({**document, "program": "/bin/false"}) as client,
        pytest.raises(JumpstarterException, match="did not start: Renode has ended"),
    ):
        client.power.on()


def test_a_renode_that_does_not_answer_is_given_up(firmware: Path, tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho no licence >&2\nexec sleep 1000\n")
    silent.chmod(0o755)
    document = {**parameters(firmware, readySeconds=1), "program": str(silent)}
    with target(document) as client:
        with pytest.raises(JumpstarterException, match=r"Renode does not answer.*no licence"):
            client.power.on()
        assert [reading.voltage for reading in client.power.read()] == [0.0]


def test_a_pool_of_boards_is_leased_like_any_other(service: Service, firmware: Path) -> None:
    """In its sandbox, with a fetched firmware and every command of the monitor."""
    for path in (firmware.parent, *firmware.parent.parents[:3]):
        path.chmod(path.stat().st_mode | 0o055)
    labels = {"board": "renode"}
    document = parameters(firmware, allowRawMonitor=True, gdb=True)
    manifests = [
        {
            "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
            "kind": "VirtualTargetClass",
            "metadata": {"name": "renode"},
            "spec": {"provisioner": "renode.jumpstarter.dev", "parameters": document},
        },
        {
            "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
            "kind": "ExporterSet",
            "metadata": {"name": "renode"},
            "spec": {
                "virtualTargetClassName": "renode",
                "minAvailableReplicas": 1,
                "maxReplicas": 2,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}},
            },
        },
    ]
    service.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(manifests))
    until(service, "renode", availableReplicas=1)
    script = (
        "from jumpstarter.utils.env import env\n"
        "with env() as client:\n"
        "    client.power.on()\n"
        "    with client.serial.pexpect() as line:\n"
        f"        line.expect_exact({BANNER!r}, timeout=60)\n"
        "        client.target.monitor_cmd('Save @one')\n"
        "        client.target.monitor_cmd('Load @one')\n"
        "        line.send('over')\n"
        "        line.expect_exact('over', timeout=60)\n"
        "    with client.target.gdb.stream() as stream:\n"
        "        print('GDB', stream.receive())\n"
        "    try:\n"
        "        client.target.monitor_cmd('include @/etc/passwd')\n"
        "    except Exception as error:\n"
        "        print('REFUSED', error)\n"
    )
    process = shell(service, "renode", str(BIN / "python"), "-c", script)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "GDB b'+" in said
    assert "REFUSED" in said
    assert "did not execute 'include @/etc/passwd'" in said
