"""Boards with a microcontroller: real QEMU, with firmware that is built here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jumpstarter.common.utils import serve

from bullpen.drivers.qemu import Qemu
from support import mcu_firmware

pytestmark = pytest.mark.real

BOARDS: dict[str, tuple[dict[str, Any], str, Callable[[Path], Path]]] = {
    "uno": ({"arch": "avr"}, "firmware", mcu_firmware.uno),
    "mps2": ({"arch": "arm", "machineType": "mps2-an385"}, "kernel", mcu_firmware.cortex_m3),
}


PARTITIONS = {"firmware": "bios", "kernel": "kernel"}


def other(directory: Path, board: str) -> Path:
    """The same firmware with another banner."""
    _, _, build = BOARDS[board]
    path = directory / "other.elf"
    banner = {"uno": b"uno is ready", "mps2": b"cortex-m3 is ready"}[board]
    replacement = b"flashed by a lessee"[: len(banner)].ljust(len(banner))
    content = build(directory).read_bytes()
    assert banner in content
    path.write_bytes(content.replace(banner, replacement))
    return path


@pytest.mark.parametrize("board", sorted(BOARDS))
def test_a_board_runs_its_firmware_and_hears_its_console(board: str, tmp_path: Path) -> None:
    parameters, place, build = BOARDS[board]
    make: Any = Qemu
    driver = make(target={**parameters, place: {"path": str(build(tmp_path))}})
    with serve(driver) as client:
        client.power.on()
        with client.console.pexpect() as line:
            line.expect("is ready", timeout=60)
            line.send("hello")
            line.expect("hello", timeout=60)
            client.power.off()
            client.flasher.flash(str(other(tmp_path, board)), target=PARTITIONS[place])
            client.power.on()
            line.expect("flashed by", timeout=60)
    driver.close()
