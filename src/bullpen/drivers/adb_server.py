"""An adb server of a target's own, which knows the target's device and no other.

By itself, an adb server finds devices at USB and in the network, connects to every emulator of the
host, and shows them all to its clients. This one runs in the sandbox of its target and is told of
one device.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from anyio.abc import SocketStream
from jumpstarter.driver import export, exportstream

from bullpen.drivers.adb_protocol import Adb, AdbFailed, adb_command
from bullpen.drivers.program import OFF_SECONDS_MAX, ProgramOutput
from bullpen.drivers.qemu_ports import ForwardedPort
from bullpen.drivers.sandbox import Access, Sandbox
from bullpen.drivers.sandbox import Program as Running

SERVER_SECONDS_MAX = 20.0
SERVER_PAUSE_SECONDS = 0.05


class AdbTarget(Protocol):
    """The target of an adb server."""

    sandbox: Sandbox

    @property
    def directory(self) -> str:
        """The server's home."""

    def server_port(self) -> int:
        """The server's port, in the network of the sandbox."""

    def adb_environment(self) -> Mapping[str, str]:
        """Variables of the server besides its own."""

    def protocol(self) -> Adb:
        """What the server is asked through."""

    def refuse_what_cannot_work(self) -> None:
        """Raises ``RuntimeError`` where no server can be started."""

    async def introduce(self, adb: Adb) -> None:
        """Tell the server of the device, if there is one now; again does no harm."""


@dataclass(kw_only=True)
class AdbServer(ForwardedPort):
    """The adb server of a target. Clients see the published driver's interface."""

    parent: AdbTarget

    def __post_init__(self) -> None:
        super().__post_init__()
        self._running: Running | None = None
        self._starting = threading.Lock()
        self._output = ProgramOutput(self.logger)
        self.sandbox = self.parent.sandbox
        self.enable_address = self.sandbox.room is None

    @classmethod
    def client(cls) -> str:
        return "jumpstarter_driver_adb.client.AdbClient"

    async def ensure(self) -> Adb:
        """The running server; it is started if it has not been, or was killed."""
        self.parent.refuse_what_cannot_work()
        with self._starting:
            if self._running is None or self._running.poll() is not None:
                self._start()
        adb, deadline = self.parent.protocol(), time.monotonic() + SERVER_SECONDS_MAX
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
                await self.parent.introduce(adb)
                return adb

    def stop(self) -> None:
        process, self._running = self._running, None
        if process is not None:
            process.kill()
            process.wait(timeout=OFF_SECONDS_MAX)

    @exportstream  # type: ignore[untyped-decorator]
    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[SocketStream]:
        await self.ensure()
        self.port = self.parent.server_port()
        async with await SocketStream.from_socket(await self._connected()) as stream:
            yield stream

    @export  # type: ignore[untyped-decorator]
    async def start_server(self) -> int:
        await self.ensure()
        return self.parent.server_port()

    @export  # type: ignore[untyped-decorator]
    def kill_server(self) -> int:
        self.stop()
        return self.parent.server_port()

    @export  # type: ignore[untyped-decorator]
    async def list_devices(self) -> str:
        adb = await self.ensure()
        return "List of devices attached\n" + await adb.devices()

    def _start(self) -> None:
        parent = self.parent
        line = adb_command(parent.directory, parent.server_port(), parent.adb_environment())
        self._output = ProgramOutput(self.logger)
        self._running = parent.sandbox.start(
            line, access=Access(writable=(parent.directory,)), stdout=None
        )
        self._output.follow(self._running.stderr)
