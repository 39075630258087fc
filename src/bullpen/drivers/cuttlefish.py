"""A Cuttlefish device as a Jumpstarter driver: power, adb, and a shell as console.

The provisioner creates and deletes the device at its host orchestrator; this driver switches it,
and connects an adb server of its own to it. Neither the orchestrator nor the device's adb asks for
a password, so a lessee gets the drivers only, and none of these addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from anyio import (
    BrokenResourceError,
    CancelScope,
    EndOfStream,
    connect_tcp,
    create_task_group,
    fail_after,
)
from anyio.abc import SocketListener, SocketStream
from jumpstarter.driver import Driver, export, exportstream
from jumpstarter_driver_power.common import PowerReading
from jumpstarter_driver_power.driver import PowerInterface

from bullpen.drivers import sandbox
from bullpen.drivers.adb_protocol import BOOTED, LOOPBACK, Adb, AdbFailed
from bullpen.drivers.adb_server import AdbServer
from bullpen.drivers.console import Console, ConsoleStream
from bullpen.drivers.json_api import ApiError, JsonApi

GRANTED = "cuttlefish.json"
"""Name of the file that the provisioner grants: ``Grant`` as JSON."""

_resets: dict[tuple[str, str], str] = {}
"""By group and device, the operation of a reset that the next lease waits for.

An exporter that ends takes its device with it, so its process remembers this for long enough.
"""

RUNNING = "Running"
OPERATION_SECONDS_MAX = 900.0
"""How long the orchestrator may take to start, stop or reset a device."""

LOOK_SECONDS = 1.0
BOOT_SECONDS_MAX = 120.0
"""How long a device that runs may take until its adb answers."""

CLOSE_SECONDS_MAX = 25.0
"""How long a reset may take to begin; a lease waits 30 s for its drivers to close."""

CONNECT_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Where one device is."""

    endpoint: str
    """Of the orchestrator."""

    host: str
    """On which the ports of the devices are."""

    adb_port: int


def operation_failed(error: ApiError) -> RuntimeError:
    return RuntimeError(f"the host orchestrator did not do it: {error}")


@dataclass(kw_only=True)
class Cuttlefish(Driver):
    """The target. Clients see its power, adb and console."""

    group: str
    device: str
    """Name of the device in its group."""

    reused: bool = False
    """Whether others use the device afterwards, and must find it as new."""

    granted: str = f"granted/{GRANTED}"

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[no-untyped-call]
        self.sandbox = sandbox.current()
        self._used = False
        self._files = TemporaryDirectory(prefix="cuttlefish-")
        self._relay: DeviceRelay | None = None
        self._server_port = 0
        self.adb = AdbServer(parent=self, host=LOOPBACK, port=0)  # type: ignore[abstract]
        children: dict[str, Any] = self.children
        children["adb"] = self.adb
        children["power"] = CuttlefishPower(parent=self)  # type: ignore[abstract]
        children["console"] = CuttlefishConsole(parent=self)  # type: ignore[abstract]

    @classmethod
    def client(cls) -> str:
        return "jumpstarter_driver_composite.client.CompositeClient"

    def close(self) -> None:
        """The end of a lease. Raises if the device cannot be reset for the next one."""
        self.adb.stop()
        if self._relay is not None:
            self._relay.stop()
            self._relay = None
        super().close()  # type: ignore[no-untyped-call]
        self._files.cleanup()
        if self._used and self.reused:
            self._used = False
            # The caller may be the thread of an event loop.
            with ThreadPoolExecutor(1) as threads:
                threads.submit(asyncio.run, self._begin_reset()).result()

    async def _begin_reset(self) -> None:
        if (self.group, self.device) in _resets:
            raise RuntimeError("the device was not reset after the lease before")
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                if await self.status() != RUNNING:
                    raise RuntimeError("a device that is off cannot be reset")
                operation = await self.call("POST", ":powerwash")
        except TimeoutError:
            said = f"its reset did not begin within {CLOSE_SECONDS_MAX:g} s"
            raise RuntimeError(said) from None
        except ApiError as error:
            raise operation_failed(error) from None
        _resets[self.group, self.device] = str(operation["name"])

    async def settled(self) -> None:
        """Returns when the device is reset, if it must be. What follows uses it."""
        self._used = True
        begun = _resets.get((self.group, self.device))
        if begun is not None:
            await self.finish(begun)
            _resets.pop((self.group, self.device), None)

    def grant(self) -> Grant:
        """As it is now: the provisioner replaces the file."""
        return Grant(**json.loads(Path(self.granted).read_text()))

    async def call(self, method: str, action: str = "") -> Any:
        """Ask something of this device, or start an operation with it."""
        place = f"/cvds/{self.group}/{self.device}" + (f"/{action}" if action else "")
        sent: dict[str, Any] = {} if method == "GET" else {"body": {}}
        return await JsonApi(self.grant().endpoint, headers={}).call(method, place, **sent)

    async def finish(self, operation: str) -> None:
        """Wait for the end of an operation. Raises if it failed, or is not known any more."""
        api = JsonApi(self.grant().endpoint, headers={})
        try:
            async with asyncio.timeout(OPERATION_SECONDS_MAX):
                while True:
                    if (await api.call("GET", f"/operations/{operation}"))["done"]:
                        break
                    await asyncio.sleep(LOOK_SECONDS)
            await api.call("GET", f"/operations/{operation}/result")
        except TimeoutError:
            said = f"the host orchestrator was not done within {OPERATION_SECONDS_MAX:g} s"
            raise RuntimeError(said) from None
        except ApiError as error:
            raise operation_failed(error) from None

    async def status(self) -> str:
        return str((await self.call("GET"))["cvds"][0]["status"])

    # The target of an adb server

    @property
    def directory(self) -> str:
        return self._files.name

    def server_port(self) -> int:
        if not self._server_port:
            with self.sandbox.stream_socket() as probe:
                probe.bind((LOOPBACK, 0))
                self._server_port = probe.getsockname()[1]
        return self._server_port

    def adb_environment(self) -> Mapping[str, str]:
        return {}

    def protocol(self) -> Adb:
        return Adb(self.sandbox.stream_socket, self.server_port())

    def refuse_what_cannot_work(self) -> None:
        if self.sandbox.wrapper and self.sandbox.room is None:
            raise RuntimeError(
                "Cuttlefish devices need the sandbox layer network, so that no lessee reaches the"
                " devices of others; bullpen doctor shows the remedy"
            )

    async def introduce(self, adb: Adb) -> None:
        """Devices that are off, or boot, are not connected to: adb tells its client that."""
        await self.settled()
        with contextlib.suppress(AdbFailed):
            await adb.connect(self.serial())

    def serial(self) -> str:
        """The device's name for adb: its port in the network of the adb server."""
        if self._relay is None:
            self._relay = DeviceRelay(self.sandbox.stream_socket(), self.grant)
            self._relay.start()
        return f"{LOOPBACK}:{self._relay.port}"

    async def terminal(self) -> socket.socket:
        """A shell on the device, once that has booted."""
        adb, serial, said = await self.adb.ensure(), self.serial(), ""
        try:
            async with asyncio.timeout(BOOT_SECONDS_MAX):
                while True:
                    try:
                        await adb.connect(serial)
                        if await adb.shell(serial, BOOTED) == "1":
                            return await adb.terminal(serial)
                    except AdbFailed as error:
                        said = str(error)
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise RuntimeError(
                f"the device's adb did not answer within {BOOT_SECONDS_MAX:g} s. {said}".strip()
            ) from None


@dataclass(kw_only=True)
class CuttlefishPower(PowerInterface, Driver):
    """Starts and stops the device, and waits until it has."""

    parent: Cuttlefish

    @export  # type: ignore[untyped-decorator]
    async def on(self) -> None:
        await self._switch(":start", already=lambda status: status == RUNNING)

    @export  # type: ignore[untyped-decorator]
    async def off(self) -> None:
        await self._switch(":stop", already=lambda status: status != RUNNING)

    @export  # type: ignore[untyped-decorator]
    async def read(self) -> AsyncIterator[PowerReading]:
        """A virtual device draws no measurable power: 0 V if it is off, 5 V if it is on."""
        status = await self.parent.status()
        yield PowerReading(voltage=5.0 if status == RUNNING else 0.0, current=0.0)

    async def _switch(self, action: str, *, already: Callable[[str], bool]) -> None:
        await self.parent.settled()
        try:
            if already(await self.parent.status()):
                return
            operation = await self.parent.call("POST", action)
        except ApiError as error:
            raise operation_failed(error) from None
        await self.parent.finish(str(operation["name"]))


@dataclass(kw_only=True)
class CuttlefishConsole(Console):
    """A shell on the device. Clients see a serial port."""

    parent: Cuttlefish

    def __post_init__(self) -> None:
        super().__post_init__()
        self._opening = asyncio.Lock()

    @exportstream  # type: ignore[untyped-decorator]
    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[ConsoleStream]:
        async with self._opening:
            if not self.line.plugged:
                await self.line.plug(await self.parent.terminal())
        async with self.line.open() as stream:
            yield stream


class DeviceRelay(threading.Thread):
    """Passes bytes between a port in the network of the adb server and the device's own.

    The adb server runs in a network in which there is nothing else; this thread is outside.
    """

    def __init__(self, listener: socket.socket, grant: Callable[[], Grant]) -> None:
        super().__init__(name="device-relay", daemon=True)
        listener.bind((LOOPBACK, 0))
        listener.listen()
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        self._grant = grant
        self._loop = asyncio.new_event_loop()
        self._scope = CancelScope()

    def run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._scope.cancel)
        self.join()

    async def _serve(self) -> None:
        with self._scope:
            async with await SocketListener.from_socket(self._listener) as listener:
                await listener.serve(self._pass_on)

    async def _pass_on(self, near: SocketStream) -> None:
        grant = self._grant()
        async with near:
            try:
                with fail_after(CONNECT_SECONDS_MAX):
                    far = await connect_tcp(grant.host, grant.adb_port)
            except (OSError, TimeoutError):
                return
            async with far, create_task_group() as both:
                both.start_soon(self._pump, near, far, both.cancel_scope)
                both.start_soon(self._pump, far, near, both.cancel_scope)

    async def _pump(self, source: SocketStream, sink: SocketStream, scope: CancelScope) -> None:
        with contextlib.suppress(BrokenResourceError, EndOfStream):
            while True:
                await sink.send(await source.receive())
        scope.cancel()
