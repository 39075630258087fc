"""The gRPC server: TLS, and settings under which idle streams live for hours."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import grpc
from jumpstarter_protocol import client_pb2_grpc, jumpstarter_pb2_grpc

from bullpen.protocol import claims_pb2_grpc
from bullpen.runtime.connections import Bounds
from bullpen.services.callers import Callers
from bullpen.services.grpc.claims import ClaimServicer
from bullpen.services.grpc.client import ClientServicer
from bullpen.services.grpc.controller import ControllerServicer
from bullpen.services.grpc.guard import Guard
from bullpen.services.grpc.methods import Methods
from bullpen.services.grpc.peer_watch import PeerWatch
from bullpen.services.grpc.public import Health, Reflection
from bullpen.services.grpc.recording import CallRecorder

STOP_SECONDS = 0.5

MESSAGE_BYTES_MAX = 1024 * 1024
"""The largest message is Register, with one to two kilobytes per driver.

This is enough for 500 drivers. The object that stores them may not be much larger either.
"""

STREAMS_MAX = 1_000
"""Calls of one connection. A program that acts as many clients or exporters shares one."""

CALLS_MAX = 50_000
"""Calls of all connections; an exporter has two while it is online."""

KEEPALIVE_SECONDS = 10
"""Seconds without traffic after which a program is asked whether it still answers."""

KEEPALIVE_TIMEOUT_SECONDS = 20
"""A program that does not answer for this long hangs. Unreachable machines are noticed earlier."""

# Jumpstarter's clients ping every 20 s, also without calls. With its defaults, the server takes
# that for abuse and closes every connection once a minute. And when a controller restarts,
# thousands of exporters call within a second.
OPTIONS = (
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1_000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_SECONDS * 1_000),
    ("grpc.server.max_pending_requests", 20_000),
    ("grpc.server.max_pending_requests_hard_limit", 20_000),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_concurrent_streams", STREAMS_MAX),
    ("grpc.so_reuseport", 0),
    # Covers TLS and the first HTTP/2 frame after it; the default is two minutes.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Idle time without calls. A client's library reconnects when it needs to.
    ("grpc.max_connection_idle_ms", 600_000),
)

SERVICES = (
    "jumpstarter.v1.ControllerService",
    "jumpstarter.client.v1.ClientService",
    "bullpen.v1.ClaimService",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    chain: bytes
    key: bytes


class GrpcServer:
    """Binds its port when constructed, so that the port is known before calls are served."""

    def __init__(
        self, *, address: str, tls: Tls, recorder: CallRecorder, bounds: Bounds | None = None
    ) -> None:
        self._methods = Methods(recorder)
        self._server = grpc.aio.server(
            interceptors=(self._methods,), options=OPTIONS, maximum_concurrent_rpcs=CALLS_MAX
        )
        credentials = grpc.ssl_server_credentials([(tls.key, tls.chain)])
        self.port: int = self._server.add_secure_port(address, credentials)
        self.guard = Guard("controller", self.port, bounds or Bounds())
        self._peers = PeerWatch(self.port)

    @contextlib.asynccontextmanager
    async def serving(
        self,
        callers: Callers,
        controller: ControllerServicer,
        client: ClientServicer,
        claims: ClaimServicer,
    ) -> AsyncIterator[None]:
        """Serve while the context is open."""
        self._methods.admit(callers, self._peers)
        methods: Any = self._methods
        jumpstarter_pb2_grpc.add_ControllerServiceServicer_to_server(cast(Any, controller), methods)
        client_pb2_grpc.add_ClientServiceServicer_to_server(cast(Any, client), methods)
        cast(Any, claims_pb2_grpc).add_ClaimServiceServicer_to_server(claims, methods)
        health = Health(SERVICES)
        self._server.add_generic_rpc_handlers((health, Reflection(SERVICES)))
        await self._server.start()
        health.serving = True
        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(each.run()) for each in (self.guard, self._peers)]
            try:
                yield
            finally:
                for task in watching:
                    task.cancel()
                health.serving = False
                await self._server.stop(STOP_SECONDS)
