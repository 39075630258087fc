"""Drivers with holes: what a lessee could do if it had found one in a driver, or in QEMU."""

from __future__ import annotations

import asyncio
import contextlib
import io
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

from jumpstarter.driver import Driver, export

from bullpen.drivers import flasher, qemu, sandbox
from bullpen.drivers.flasher import Flashed
from bullpen.drivers.qemu import Qemu
from bullpen.drivers.qemu_command import Drive
from bullpen.drivers.sandbox import Access

COMMAND_SECONDS_MAX = 30


@dataclass(kw_only=True)
class Hole(Driver):
    """Runs what it is told: in the exporter itself, beside it, and where QEMU runs."""

    @classmethod
    def client(cls) -> str:
        return "jumpstarter_driver_composite.client.CompositeClient"

    @export  # type: ignore[untyped-decorator]
    def python(self, code: str) -> str:
        """What a piece of Python prints in this process, or its error."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                exec(code, {})
            except BaseException as error:
                return f"{type(error).__name__}: {error}"
        return printed.getvalue()

    @export  # type: ignore[untyped-decorator]
    def beside(self, command: str) -> str:
        """What a shell says that the exporter starts."""
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, timeout=COMMAND_SECONDS_MAX, check=False
        )
        return (done.stdout + done.stderr).decode(errors="replace")

    @export  # type: ignore[untyped-decorator]
    async def inside(self, command: str) -> str:
        """What a shell says in the sandbox of a machine, with as much as a machine gets."""
        access = Access(writable=(tempfile.gettempdir(),))
        line = ("bash", "-c", f"exec 2>&1; {command}; true")
        return await asyncio.to_thread(self._inside, line, access)

    def _inside(self, line: tuple[str, ...], access: Access) -> str:
        program = sandbox.current().start(("bash", "-c", f"( {line[2]} ) >&2"), access=access)
        with program.stderr as said:
            found = said.read().decode(errors="replace")
        program.wait(COMMAND_SECONDS_MAX)
        return found


@dataclass(kw_only=True)
class UncheckedQemu(Qemu):
    """The machine without any of the checks that protect it from flashed images."""

    def __post_init__(self) -> None:
        trusting: Any = flasher
        trusting._examined = _believed
        trusting = qemu
        trusting.Drive = _referring
        super().__post_init__()


def _believed(path: Any, *, verbatim: bool = False) -> Flashed:
    kind = "raw" if verbatim else "qcow2"
    return Flashed(path=path, format=kind, virtual_bytes=1 << 20)


def _referring(**chosen: Any) -> Drive:
    return Drive(**{**chosen, "standalone": False})
