"""The leased exporter itself: its drivers, their calls and their streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import json_format
from google.protobuf.empty_pb2 import Empty
from google.protobuf.struct_pb2 import Value
from jumpstarter_protocol import (
    jumpstarter_pb2,
    jumpstarter_pb2_grpc,
    router_pb2,
    router_pb2_grpc,
)

from bullpen.client.connection import our_errors
from bullpen.errors import LeaseRefused, NotFound, Unavailable, Unreachable

READY_SECONDS_MAX = 300.0
LOOK_SECONDS = 0.05
LOOK_SECONDS_MAX = 0.5
ANSWER_SECONDS_MAX = 30.0

LEASE_READY = 4
HOOK_FAILED = (6, 7)
"""Values of ``ExporterStatus``."""

SERIAL_CLIENT = "PySerialClient"
POWER_CLIENTS = ("PowerClient", "VirtualPowerClient")
FLASHER_CLIENTS = ("FlasherClient", "QemuFlasherClient")
NETWORK_CLIENT = "NetworkClient"
SCREEN_NAMES = ("screen", "vnc")
"""Names of network drivers in front of a VNC server; their class says nothing about it."""

FRAME_BYTES_MAX = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverReport:
    """One driver of the exporter."""

    uuid: str
    path: str
    """Its names from the root, such as ``qemu.console``."""

    client: str
    """The class of its client."""


class Exporter:
    """A connection to the exporter through the tunnel's socket. A context manager."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}")
        self._exporter: Any = jumpstarter_pb2_grpc.ExporterServiceStub(self._channel)
        self._router: Any = router_pb2_grpc.RouterServiceStub(self._channel)

    async def __aenter__(self) -> Exporter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def ready(self) -> None:
        """Wait until the exporter has prepared the lease. Raises ``Unreachable``."""
        pause = LOOK_SECONDS
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                while True:
                    status = await self._status()
                    if status is not None and status.status == LEASE_READY:
                        return
                    if status is not None and status.status in HOOK_FAILED:
                        raise LeaseRefused(status.message or "a hook of the exporter failed")
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LOOK_SECONDS_MAX)
        except TimeoutError:
            raise Unreachable(f"the exporter was not ready in {READY_SECONDS_MAX:g} s") from None

    async def _status(self) -> Any:
        try:
            request = jumpstarter_pb2.GetStatusRequest()
            return await self._exporter.GetStatus(request, timeout=ANSWER_SECONDS_MAX)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return None  # it is not connected yet

    async def present(self) -> None:
        """Hold a connection open, which tells the service that the lease is in use."""
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self.held()
            await asyncio.sleep(LOOK_SECONDS_MAX)

    async def held(self) -> None:
        """Hold one connection open until it ends. Raises ``AioRpcError`` if it is lost."""
        async for _ in self._exporter.LogStream(Empty()):
            pass

    async def drivers(self) -> tuple[DriverReport, ...]:
        with our_errors("the exporter"):
            report = await self._exporter.GetReport(Empty(), timeout=ANSWER_SECONDS_MAX)
        return driver_reports(report)

    async def call(self, driver: DriverReport, method: str, *arguments: Any) -> None:
        """Call a method with arguments as of JSON."""
        values = [json_format.ParseDict(given, Value()) for given in arguments]
        request = jumpstarter_pb2.DriverCallRequest(uuid=driver.uuid, method=method, args=values)
        with our_errors("the exporter"):
            await self._exporter.DriverCall(request)

    @contextlib.asynccontextmanager
    async def stream(self, driver: DriverReport) -> AsyncIterator[Any]:
        """An open byte stream of a driver."""
        request = {"kind": "driver", "uuid": driver.uuid, "method": "connect"}
        stream = self._router.Stream(metadata=(("request", json.dumps(request)),))
        try:
            yield stream
        finally:
            stream.cancel()

    @contextlib.asynccontextmanager
    async def upload(self, driver: DriverReport) -> AsyncIterator[Upload]:
        """A stream to a driver, which a call of its methods can name."""
        request = {"kind": "resource", "uuid": driver.uuid}
        stream = self._router.Stream(metadata=(("request", json.dumps(request)),))
        try:
            with our_errors("the exporter"):
                metadata = dict(await stream.initial_metadata())
            yield Upload(stream, json.loads(metadata["resource"]))
        finally:
            stream.cancel()


class Upload:
    """Content on its way to a driver."""

    def __init__(self, stream: Any, handle: object) -> None:
        self._stream = stream
        self.handle = handle
        """How a call of a method names it."""

    async def write(self, data: bytes) -> None:
        """Send, at most ``FRAME_BYTES_MAX``, as soon as the driver has room."""
        await self._sent(router_pb2.StreamRequest(payload=data))

    async def end(self) -> None:
        await self._sent(router_pb2.StreamRequest(frame_type=router_pb2.FRAME_TYPE_GOAWAY))

    async def _sent(self, frame: Any) -> None:
        try:
            with our_errors("the exporter"):
                await self._stream.write(frame)
        except asyncio.InvalidStateError:
            raise Unavailable("the target takes no more of the content") from None


def driver_reports(report: Any) -> tuple[DriverReport, ...]:
    """All drivers, by path."""
    found = {item.uuid: item for item in report.reports}

    def path(item: Any) -> str:
        own = item.labels.get("jumpstarter.dev/name", "")
        parent = found.get(item.parent_uuid) if item.parent_uuid else None
        above = path(parent) if parent is not None else ""
        return f"{above}.{own}" if above and own else own or above

    return tuple(
        DriverReport(
            uuid=item.uuid, path=path(item), client=item.labels.get("jumpstarter.dev/client", "")
        )
        for item in report.reports
    )


def serial_of(drivers: tuple[DriverReport, ...], name: str = "") -> DriverReport:
    """The named serial port, or the first one. Raises ``NotFound``."""
    return _chosen(drivers, (SERIAL_CLIENT,), name, "serial port")


def power_of(drivers: tuple[DriverReport, ...], name: str = "") -> DriverReport:
    return _chosen(drivers, POWER_CLIENTS, name, "power driver")


def flasher_of(drivers: tuple[DriverReport, ...], name: str = "") -> DriverReport:
    return _chosen(drivers, FLASHER_CLIENTS, name, "flasher")


def screen_of(drivers: tuple[DriverReport, ...]) -> DriverReport:
    named = tuple(d for d in drivers if d.path.rpartition(".")[2] in SCREEN_NAMES)
    return _chosen(named, (NETWORK_CLIENT,), "", "screen")


def _chosen(
    drivers: tuple[DriverReport, ...], clients: tuple[str, ...], name: str, what: str
) -> DriverReport:
    fitting = [d for d in drivers if d.client.rpartition(".")[2] in clients]
    chosen = [d for d in fitting if name in ("", d.path, d.path.rpartition(".")[2])]
    if chosen:
        return min(chosen, key=lambda driver: (driver.path.count("."), driver.path))
    known = ", ".join(sorted(driver.path for driver in fitting)) or "none"
    raise NotFound(f"the target has no {what} {name}".rstrip() + f"; it has: {known}")
