"""An Android emulator as a Jumpstarter driver: power, adb, and a shell as console.

Each instance has an adb server and a virtual device of its own, with their own keys, files and
ports, in the sandbox and the network of the instance. By itself, an adb server connects to every
emulator of the host and shows them all to its clients; this one is told of its own emulator only.
Switching the target on starts the emulator and waits until Android has booted; switching it off
kills it, and the device keeps its data as on a disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyio.abc import SocketStream
from jumpstarter.driver import export, exportstream

from bullpen.api import codec
from bullpen.drivers.adb_protocol import Adb, AdbFailed
from bullpen.drivers.android_parameters import (
    AndroidAccel,
    AndroidParameters,
    AndroidPorts,
    adb_command,
    avd_files,
    emulator_command,
    image_directory,
    program,
)
from bullpen.drivers.program import OFF_SECONDS_MAX, Program, ProgramOutput, ProgramPower
from bullpen.drivers.program_parameters import Placeholders, ProgramParameters
from bullpen.drivers.qemu_command import LOOPBACK
from bullpen.drivers.qemu_ports import ForwardedPort
from bullpen.drivers.sandbox import Access
from bullpen.drivers.sandbox import Program as Running

SERVER_SECONDS_MAX = 20.0
BOOT_PAUSE_SECONDS = 0.5
SERVER_PAUSE_SECONDS = 0.05
CONSOLE_PORTS = range(5554, 5682, 2)
"""The emulator's console takes one of these, and its adb the port after it."""

_reserved: set[int] = set()
"""Console ports of the other devices of this exporter, which may be off at the moment."""

BOOTED = "getprop sys.boot_completed"


@dataclass(kw_only=True)
class AndroidEmulator(Program):
    """The target. Clients see the published driver's interface."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._write_device()
        self.adb = AdbServer(parent=self, host=LOOPBACK, port=0)  # type: ignore[abstract]
        children: dict[str, Any] = self.children
        children["adb"] = self.adb

    @classmethod
    def client(cls) -> str:
        return "jumpstarter_driver_androidemulator.client.AndroidEmulatorClient"

    def close(self) -> None:
        self.power.off()
        self.adb.release()
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
        return emulator_command(self.android, directory=values.directory, ports=self.adb.ports())

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

    @export  # type: ignore[untyped-decorator]
    def set_headless(self, headless: bool) -> None:  # noqa: FBT001 - as published
        if not headless:
            raise RuntimeError("devices here have no window; use screen sharing over adb")


@dataclass(kw_only=True)
class AdbServer(ForwardedPort):
    """The adb server of the instance. Clients see the published driver's interface."""

    parent: AndroidEmulator

    def __post_init__(self) -> None:
        super().__post_init__()
        self._running: Running | None = None
        self._ports: AndroidPorts | None = None
        self._starting = threading.Lock()
        self._output = ProgramOutput(self.logger)
        self.sandbox = self.parent.sandbox
        self.enable_address = self.sandbox.room is None

    @classmethod
    def client(cls) -> str:
        return "jumpstarter_driver_adb.client.AdbClient"

    def ports(self) -> AndroidPorts:
        """The instance's ports: chosen once, and free then."""
        if self._ports is None:
            self._ports = AndroidPorts(console=self._console_port(), server=self.parent.port("adb"))
        return self._ports

    def protocol(self) -> Adb:
        return Adb(self.parent.new_socket, self.ports().server)

    async def ensure(self) -> Adb:
        """The running server; it is started if it has not been, or was killed."""
        self.parent.refuse_what_cannot_work()
        with self._starting:
            if self._running is None or self._running.poll() is not None:
                self._start()
        adb, deadline = self.protocol(), time.monotonic() + SERVER_SECONDS_MAX
        while True:
            try:
                await adb.version()
            except AdbFailed:
                ended = self._running is None or self._running.poll() is not None
                if ended or time.monotonic() > deadline:
                    said = self._output.last_lines(ended=ended)
                    raise RuntimeError(f"the adb server did not start. {said}".strip()) from None
                await asyncio.sleep(SERVER_PAUSE_SECONDS)
            else:
                if self.parent.is_on():
                    await adb.introduce(self.ports().device)
                return adb

    def stop(self) -> None:
        process, self._running = self._running, None
        if process is not None:
            process.kill()
            process.wait(timeout=OFF_SECONDS_MAX)

    def release(self) -> None:
        """Stop the server, and let others have its ports."""
        self.stop()
        if self._ports is not None:
            _reserved.discard(self._ports.console)
            self._ports = None

    @exportstream  # type: ignore[untyped-decorator]
    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[SocketStream]:
        await self.ensure()
        self.port = self.ports().server
        async with await SocketStream.from_socket(await self._connected()) as stream:
            yield stream

    @export  # type: ignore[untyped-decorator]
    async def start_server(self) -> int:
        await self.ensure()
        return self.ports().server

    @export  # type: ignore[untyped-decorator]
    def kill_server(self) -> int:
        self.stop()
        return self.ports().server

    @export  # type: ignore[untyped-decorator]
    async def list_devices(self) -> str:
        adb = await self.ensure()
        return "List of devices attached\n" + await adb.devices()

    def _start(self) -> None:
        parent, ports = self.parent, self.ports()
        line = adb_command(parent.android, directory=parent.directory, ports=ports)
        self._output = ProgramOutput(self.logger)
        self._running = parent.sandbox.start(
            line, access=Access(writable=(parent.directory,)), stdout=None
        )
        self._output.follow(self._running.stderr)

    def _console_port(self) -> int:
        for port in CONSOLE_PORTS:
            if port in _reserved:
                continue
            with self.parent.new_socket() as first, self.parent.new_socket() as second:
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
        serial = target.adb.ports().serial
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
                await adb.introduce(self.parent.adb.ports().device)
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
