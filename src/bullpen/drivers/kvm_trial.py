"""Whether a machine that runs with KVM shows signs of life, as it would with emulation.

The test guest of a host can miss a fault that a kernel meets. So a machine with ``accel:
auto`` is watched after it was switched on: if QEMU fails with KVM, or the kernel prints
nothing, the machine is started again with emulation. Only if it then works is KVM to blame;
the exporter uses emulation from then on, and its host is told.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace

from bullpen.drivers.qemu_command import Machine
from bullpen.drivers.qemu_parameters import Accel
from bullpen.drivers.target_files import MachineSite

LIFE_SECONDS_MAX = 30.0
"""A kernel with emulation prints its first line within this time, also on a busy host."""

HEARD_BYTES_MAX = 1 << 14
"""Output of the firmware is shorter."""

_FIRMWARE = re.compile(rb"(?s).*Booting from [A-Za-z ]*[.\s]*")
_CONSOLE = re.compile(r"\bconsole=(ttyS|ttyAMA|hvc)")

Report = Callable[[str, str], None]
"""Called with the architecture and the problem."""


class _Host:
    """What this exporter knows of its host."""

    failed = False
    report: Report | None = None


def report_to(report: Report | None) -> None:
    """Where a failure of KVM is reported, besides the log; also forgets earlier failures."""
    _Host.report, _Host.failed = report, False


def fail(arch: str, problem: str) -> None:
    """KVM is to blame: no machine of this exporter uses it again."""
    _Host.failed = True
    if _Host.report is not None:
        _Host.report(arch, problem)


def trusted(site: MachineSite) -> MachineSite:
    """The site, without KVM after it failed."""
    return replace(site, kvm=False) if _Host.failed else site


def is_on_trial(machine: Machine) -> bool:
    """Whether this machine may be started again with emulation."""
    return machine.kvm and machine.parameters.accel is Accel.AUTO


def speaks(machine: Machine) -> bool:
    """Whether its class declares that the kernel prints on the console.

    A machine may be silent otherwise, and a kernel that a lessee flashed proves nothing.
    """
    known = machine.parameters.kernel is not None and not machine.flashed_kernel
    return known and _CONSOLE.search(machine.parameters.append) is not None


def is_alive(output: bytes) -> bool:
    """Whether more was printed than by the firmware of a machine that starts a kernel."""
    firmware = _FIRMWARE.match(output)
    if firmware is not None:
        return bool(output[firmware.end() :].strip())
    return bool(output.strip()) and b"SeaBIOS" not in output


class Output:
    """What a machine printed since it was switched on, until it is alive."""

    def __init__(self) -> None:
        self._heard = bytearray()
        self._alive = asyncio.Event()

    def add(self, data: bytes) -> None:
        if self._alive.is_set():
            return
        self._heard += data
        if is_alive(bytes(self._heard)) or len(self._heard) > HEARD_BYTES_MAX:
            self._alive.set()

    async def comes(self) -> bool:
        """Whether there is a sign of life in time."""
        try:
            async with asyncio.timeout(LIFE_SECONDS_MAX):
                await self._alive.wait()
        except TimeoutError:
            return False
        return True
