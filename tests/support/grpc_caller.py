"""A caller in the test's own process: the published stubs, with the headers a config gives.

For what needs many clients, exact timing, or calls that ``jmp`` itself no longer makes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import yaml
from google.protobuf.duration_pb2 import Duration
from jumpstarter_protocol import (
    client_pb2,
    client_pb2_grpc,
    jumpstarter_pb2,
    jumpstarter_pb2_grpc,
    router_pb2,
    router_pb2_grpc,
)

CALL_SECONDS_MAX = 120.0


class Caller:
    """One client or exporter, over one connection."""

    def __init__(self, channel: Any, config: dict[str, Any], kind: str) -> None:
        self.config = config
        self.name, self.namespace = config["metadata"]["name"], config["metadata"]["namespace"]
        self.headers = (
            ("authorization", f"Bearer {config['token']}"),
            ("jumpstarter-kind", kind),
            ("jumpstarter-namespace", self.namespace),
            ("jumpstarter-name", self.name),
        )
        self.channel = channel
        self._clients: Any = client_pb2_grpc.ClientServiceStub(channel)
        self._controller: Any = jumpstarter_pb2_grpc.ControllerServiceStub(channel)

    async def client(self, method: str, **fields: Any) -> Any:
        """A call of ClientService."""
        request = getattr(client_pb2, f"{method}Request")(**fields)
        call = getattr(self._clients, method)
        return await call(request, metadata=self.headers, timeout=CALL_SECONDS_MAX)

    async def controller(self, method: str, **fields: Any) -> Any:
        """A unary call of ControllerService."""
        request = getattr(jumpstarter_pb2, f"{method}Request")(**fields)
        call = getattr(self._controller, method)
        return await call(request, metadata=self.headers, timeout=CALL_SECONDS_MAX)

    def stream(self, method: str, **fields: Any) -> Any:
        """A server stream of ControllerService, open until it is cancelled."""
        request = getattr(jumpstarter_pb2, f"{method}Request")(**fields)
        return getattr(self._controller, method)(request, metadata=self.headers)

    # What clients do

    @property
    def parent(self) -> str:
        return f"namespaces/{self.namespace}"

    async def create_lease(
        self, selector: str = "", *, exporter: str = "", lasts: float = 60.0, lease_id: str = ""
    ) -> str:
        """Ask for a lease; returns its name."""
        duration = Duration()
        duration.FromTimedelta(timedelta(seconds=lasts))
        lease = client_pb2.Lease(selector=selector, exporter_name=exporter, duration=duration)
        made = await self.client("CreateLease", parent=self.parent, lease=lease, lease_id=lease_id)
        return str(made.name).rpartition("/")[2]

    async def get_lease(self, name: str) -> Any:
        return await self.client("GetLease", name=f"{self.parent}/leases/{name}")

    async def acquired(self, name: str) -> Any:
        """The lease once it is ready; looks at it as the stock client does, without its pauses."""
        while True:
            lease = await self.get_lease(name)
            found = {item.type: item for item in lease.conditions}
            if "Ready" in found and found["Ready"].status == "True":
                return lease
            assert "Unsatisfiable" not in found, found["Unsatisfiable"].message
            assert found.get("Pending") is None or found["Pending"].status == "True", lease
            await asyncio.sleep(0.01)

    async def delete_lease(self, name: str) -> None:
        await self.client("DeleteLease", name=f"{self.parent}/leases/{name}")

    async def dial(self, lease: str) -> Any:
        return await self.controller("Dial", lease_name=lease)

    @contextlib.asynccontextmanager
    async def tunnel(self, call: Any) -> AsyncIterator[Any]:
        """The router's stream for what Dial or Listen answered."""
        async with _channel(call.router_endpoint, self.config) as channel:
            stub: Any = router_pb2_grpc.RouterServiceStub(channel)
            token = (("authorization", f"Bearer {call.router_token}"),)
            stream = stub.Stream(metadata=token)
            try:
                yield stream
            finally:
                stream.cancel()


def frame(payload: bytes) -> Any:
    return router_pb2.StreamRequest(payload=payload)


@contextlib.asynccontextmanager
async def calling(path: Path, kind: str = "Client") -> AsyncIterator[Caller]:
    """A caller with the identity of a config file."""
    config = yaml.safe_load(path.read_text())
    async with _channel(config["endpoint"], config) as channel:
        yield Caller(channel, config, kind)


def _channel(endpoint: str, config: dict[str, Any]) -> Any:
    authority = base64.b64decode(config["tls"]["ca"])
    return grpc.aio.secure_channel(endpoint, grpc.ssl_channel_credentials(authority))
