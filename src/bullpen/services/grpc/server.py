"""The gRPC server: TLS, and settings under which idle streams live for hours."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection
from jumpstarter_protocol import client_pb2_grpc, jumpstarter_pb2_grpc

from bullpen.services.grpc.client import ClientServicer
from bullpen.services.grpc.controller import ControllerServicer
from bullpen.services.grpc.reading import Registrar

STOP_SECONDS = 0.5
MESSAGE_BYTES_MAX = 16 * 1024 * 1024

# Jumpstarter's clients ping every 20 s, also without calls. A server left at its defaults
# takes that for abuse and cuts every stream once a minute. And when a controller comes
# back, thousands of exporters call within a second.
OPTIONS = (
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.server.max_pending_requests", 20_000),
    ("grpc.server.max_pending_requests_hard_limit", 20_000),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),
)

SERVICES = (
    "jumpstarter.v1.ControllerService",
    "jumpstarter.client.v1.ClientService",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    chain: bytes
    key: bytes


class GrpcServer:
    """Takes its port when made, so that the port can be told before anybody is served."""

    def __init__(self, *, address: str, tls: Tls) -> None:
        self._server = grpc.aio.server(options=OPTIONS)
        credentials = grpc.ssl_server_credentials([(tls.key, tls.chain)])
        self.port: int = self._server.add_secure_port(address, credentials)

    @contextlib.asynccontextmanager
    async def serving(
        self, controller: ControllerServicer, client: ClientServicer
    ) -> AsyncIterator[None]:
        """Serve while the context is open."""
        registrar = Registrar(self._server)
        jumpstarter_pb2_grpc.add_ControllerServiceServicer_to_server(controller, registrar)
        client_pb2_grpc.add_ClientServiceServicer_to_server(client, registrar)
        status = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(status, self._server)
        names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        await self._server.start()
        for name in ("", *SERVICES):
            await status.set(name, health_pb2.HealthCheckResponse.SERVING)
        try:
            yield
        finally:
            await status.enter_graceful_shutdown()
            await self._server.stop(STOP_SECONDS)
