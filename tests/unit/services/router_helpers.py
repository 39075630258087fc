"""A router on loopback and the published gRPC client to talk through it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import grpc
from jumpstarter_protocol import router_pb2, router_pb2_grpc

from bullpen.core.sessions import Session
from bullpen.identity.subjects import Role
from bullpen.identity.tokens import STREAM_LIFETIME, Ticket, Tickets
from bullpen.kit.clock import SystemClock
from bullpen.services.router.limits import Limits
from bullpen.services.router.server import Router

CLOCK = SystemClock()
TICKETS = Tickets(b"k" * 32)


class RunningRouter:
    def __init__(self, router: Router, port: int, sessions: list[Session]) -> None:
        self.router = router
        self.port = port
        self.sessions = sessions

    def token(
        self,
        role: Role,
        *,
        stream: str = "s1",
        lease: str = "lease-1",
        epoch: int = 1,
        lifetime: timedelta = STREAM_LIFETIME,
    ) -> str:
        now = CLOCK.now()
        ticket = Ticket(stream=stream, lease=lease, epoch=epoch, role=role, expires=now + lifetime)
        return TICKETS.mint(ticket, now=now)

    @contextlib.asynccontextmanager
    async def leg(self, token: str) -> AsyncIterator[Any]:
        """A Stream call with the given token, on a connection of its own."""
        options = [("grpc.max_receive_message_length", 64 << 20)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=options) as channel:
            stub = router_pb2_grpc.RouterServiceStub(channel)
            yield stub.Stream(metadata=(("authorization", f"Bearer {token}"),))


@contextlib.asynccontextmanager
async def running_router(limits: Limits | None = None) -> AsyncIterator[RunningRouter]:
    sessions: list[Session] = []
    router = Router(TICKETS, clock=CLOCK, limits=limits, on_session=sessions.append)
    listener = socket.create_server(("127.0.0.1", 0))
    async with router.serving(listener, None):
        yield RunningRouter(router, listener.getsockname()[1], sessions)


def data(payload: bytes) -> Any:
    return router_pb2.StreamRequest(payload=payload)
