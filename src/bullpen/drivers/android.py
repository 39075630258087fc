"""An Android emulator as a Jumpstarter driver: power, adb, and a shell as console.

Each instance has an adb server and a virtual device of its own, with their own keys, files and
ports, in the sandbox and the network of the instance. By itself, an adb server connects to every
emulator of the host and shows them all to its clients; this one is told of its own emulator only.
Switching the target on starts the emulator and waits until Android has booted; switching it off
kills it, and the device keeps its data as on a disk.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jumpstarter.driver import export

from bullpen.api import codec
from bullpen.drivers.adb_protocol import BOOTED, Adb, AdbFailed
from bullpen.drivers.adb_server import AdbServer
from bullpen.drivers.android_parameters import (
    AndroidAccel,
    AndroidParameters,
    AndroidPorts,
    avd_files,
    emulator_command,
    environment,
    image_directory,
    program,
)
from bullpen.drivers.program import Program, ProgramPower
from bullpen.drivers.program_parameters import Placeholders, ProgramParameters
from bullpen.drivers.qemu_command import LOOPBACK
from bullpen.drivers.sandbox import Access

BOOT_PAUSE_SECONDS = 0.5
CONSOLE_PORTS = range(5554, 5682, 2)
"""The emulator's console takes one of these, and its adb the port after it."""

_reserved: set[int] = set()
"""Console ports of the other devices of this exporter, which may be off at the moment."""


@dataclass(kw_only=True)
class AndroidEmulator(Program):
    """The target. Clients see the published driver's interface."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ports: AndroidPorts | None = None
        self._write_device()
        self.adb = AdbServer(parent=self, host=LOOPBACK, port=0)  # type: ignore[abstract]
        children: dict[str, Any] = self.children
        children["adb"] = self.adb

    @classmethod
    def client(cls) -> str:
        return "jumpstarter_driver_androidemulator.client.AndroidEmulatorClient"

    def close(self) -> None:
        self.power.off()
        self.adb.stop()
        self._release_ports()
        super().close()

    def read_parameters(self) -> ProgramParameters:
        """Those of the emulator as a program."""
        wanted = self.android = codec.decode(AndroidParameters, self.target)
        return ProgramParameters(program=program(wanted), ready_seconds=wanted.ready_seconds)

    def is_flashable(self) -> bool:
        return False

    def new_power(self) -> AndroidPower:
        return AndroidPower(parent=self)  # type: ignore[abstract]

    def _write_device(self) -> None:
        """Before any program is started that could put links in the way."""
        for name, content in avd_files(self.android, self.directory).items():
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    def line(self, values: Placeholders) -> tuple[str, ...]:
        self.refuse_what_cannot_work()
        return emulator_command(self.android, directory=values.directory, ports=self.ports())

    def access(self, values: Placeholders) -> Access:
        wanted = self.android
        return Access(
            readable=(wanted.sdk, program(wanted), image_directory(wanted), *wanted.readable),
            writable=(self.directory,),
            devices=("/dev/kvm",) if wanted.accel is AndroidAccel.KVM else (),
            processes=True,
        )

    def refuse_what_cannot_work(self) -> None:
        if self.machine_site.launcher:
            raise RuntimeError("Android emulators run on hosts, not in Pods; use another pool")
        if self.sandbox.wrapper and self.sandbox.room is None:
            raise RuntimeError(
                "Android emulators need the sandbox layer network, so that no lessee reaches the"
                " devices of others; bullpen doctor shows the remedy"
            )
        if self.android.accel is AndroidAccel.KVM and not self.machine_site.kvm:
            raise RuntimeError(
                "KVM does not work on this host; bullpen doctor shows why. Without it a device"
                " takes tens of minutes to boot: the owner of the class can accept that with"
                " accel: none"
            )

    def ports(self) -> AndroidPorts:
        """The instance's ports: chosen once, and free then."""
        if self._ports is None:
            self._ports = AndroidPorts(console=self._console_port(), server=self.port("adb"))
        return self._ports

    def server_port(self) -> int:
        return self.ports().server

    def adb_environment(self) -> Mapping[str, str]:
        return environment(self.android, directory=self.directory, ports=self.ports())

    def protocol(self) -> Adb:
        return Adb(self.new_socket, self.server_port())

    async def introduce(self, adb: Adb) -> None:
        if self.is_on():
            await adb.introduce(self.ports().device)

    def _release_ports(self) -> None:
        """Let others have them."""
        if self._ports is not None:
            _reserved.discard(self._ports.console)
            self._ports = None

    def _console_port(self) -> int:
        for port in CONSOLE_PORTS:
            if port in _reserved:
                continue
            with self.new_socket() as first, self.new_socket() as second:
                for made in (first, second):
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    first.bind((LOOPBACK, port))
                    second.bind((LOOPBACK, port + 1))
                except OSError:
                    continue
                _reserved.add(port)
                return port
        raise RuntimeError("no port is free for an emulator; switch another one off first")

    @export  # type: ignore[untyped-decorator]
    def set_headless(self, headless: bool) -> None:  # noqa: FBT001 - as published
        if not headless:
            raise RuntimeError("devices here have no window; use screen sharing over adb")


@dataclass(kw_only=True)
class AndroidPower(ProgramPower):
    """Starts and kills the emulator, and waits until Android has booted."""

    parent: AndroidEmulator

    async def _switch_on(self) -> None:
        target = self.parent
        values = target.placeholders()
        deadline = time.monotonic() + target.android.ready_seconds
        adb = await target.adb.ensure()
        self._start(values)
        serial = target.ports().serial
        await self._wait_until_booted(adb, serial, deadline)
        for apk in target.android.apks:
            await self._install(adb, serial, target.machine_site.path(apk))
        shell: socket.socket = await adb.terminal(serial)
        await target.console.line.plug(shell)

    async def _wait_until_booted(self, adb: Adb, serial: str, deadline: float) -> None:
        """Ask the device, of which the server may learn late, or which may not answer yet."""
        said = ""
        for _ in self._attempts(deadline, "Android did not boot"):
            try:
                await adb.introduce(self.parent.ports().device)
                if await adb.shell(serial, BOOTED) == "1":
                    return
            except AdbFailed as error:
                if str(error) != said:
                    said = str(error)
                    self._output.note(said)
            await asyncio.sleep(BOOT_PAUSE_SECONDS)

    async def _install(self, adb: Adb, serial: str, path: str) -> None:
        package = await asyncio.to_thread(open, path, "rb")
        with package:
            said = await adb.install(serial, package, os.fstat(package.fileno()).st_size)
        if "Success" not in said:
            raise RuntimeError(f"the device did not install {path}: {said or 'no reason given'}")
        self.logger.info("installed %s", path)
