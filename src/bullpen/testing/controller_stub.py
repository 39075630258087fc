"""The part of a Jumpstarter controller that an exporter needs to register and be leased.

For tests of provisioners only: it accepts every token and stores nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from jumpstarter.common import ExporterStatus
from jumpstarter_protocol import jumpstarter_pb2, jumpstarter_pb2_grpc

from bullpen.datadir import certificates
from bullpen.kit.clock import SystemClock
from bullpen.provisioners.base import Connection, Key

SECONDS_MAX = 60.0
TOKEN = "a token that must not be shown"


class StubController(jumpstarter_pb2_grpc.ControllerServiceServicer):
    """The part of the controller that an exporter needs to register and be leased."""

    def __init__(self) -> None:
        self._leased: dict[Key, bool] = {}
        self._status: dict[Key, int] = {}
        self._changed = asyncio.Condition()
        self.port = 0
        self.ca_pem = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def serving(cls, directory: Path) -> AsyncIterator[StubController]:
        certs = certificates.ensure(directory / "pki", ("127.0.0.1",), now=SystemClock().now())
        credentials = grpc.ssl_server_credentials(
            [(certs.server_key.read_bytes(), certs.server_chain.read_bytes())]
        )
        controller = cls()
        controller.ca_pem = certs.ca_pem().decode()
        server = grpc.aio.server()
        controller.port = server.add_secure_port("127.0.0.1:0", credentials)
        jumpstarter_pb2_grpc.add_ControllerServiceServicer_to_server(controller, server)
        await server.start()
        try:
            yield controller
        finally:
            await server.stop(None)

    def connection(self) -> Connection:
        """How an exporter reaches this controller."""
        return Connection(endpoint=f"127.0.0.1:{self.port}", token=TOKEN, ca_pem=self.ca_pem)

    async def lease(self, key: Key, *, leased: bool) -> None:
        """Lease or release, and wait until the exporter has acted on it."""
        expected = (_LEASE_READY,) if leased else (_AVAILABLE, _OFFLINE)
        async with asyncio.timeout(SECONDS_MAX), self._changed:
            self._leased[key] = leased
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._status.get(key) in expected)

    async def Register(self, request: Any, context: Any) -> Any:  # noqa: N802
        return jumpstarter_pb2.RegisterResponse()

    async def Unregister(self, request: Any, context: Any) -> Any:  # noqa: N802
        return jumpstarter_pb2.UnregisterResponse()

    async def ReportStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        async with self._changed:
            self._status[_caller(context)] = request.status
            self._changed.notify_all()
        return jumpstarter_pb2.ReportStatusResponse()

    async def ReleaseLease(self, request: Any, context: Any) -> Any:  # noqa: N802
        return jumpstarter_pb2.ReleaseLeaseResponse()

    async def Status(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        key = _caller(context)
        said: bool | None = None
        while True:
            async with self._changed:
                while said is self._leased.get(key, False):
                    await self._changed.wait()
                said = self._leased.get(key, False)
            names = {"lease_name": "lease", "client_name": "client"} if said else {}
            yield jumpstarter_pb2.StatusResponse(leased=said, **names)

    async def Listen(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        await asyncio.Event().wait()
        yield jumpstarter_pb2.ListenResponse()


_LEASE_READY = ExporterStatus.LEASE_READY.to_proto()
_AVAILABLE = ExporterStatus.AVAILABLE.to_proto()
_OFFLINE = ExporterStatus.OFFLINE.to_proto()


def _caller(context: Any) -> Key:
    found = {item.key: item.value for item in context.invocation_metadata()}
    return found["jumpstarter-namespace"], found["jumpstarter-name"]
