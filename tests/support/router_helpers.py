"""A router on loopback with the published gRPC client, and one that is spoken to byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import grpc
from jumpstarter_protocol import router_pb2, router_pb2_grpc

from bullpen.core.leases.sessions import Session
from bullpen.identity.subjects import Role
from bullpen.identity.tokens import STREAM_LIFETIME, Ticket, Tickets
from bullpen.kit.clock import SystemClock
from bullpen.services.router import frames
from bullpen.services.router.connection import Connection, Limits
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


HOSTILE_LIMITS = Limits(control_frames_max=50, header_bytes_max=1024, streams_max=4)
PATH = "/jumpstarter.v1.RouterService/Stream"


class Wire(asyncio.Transport):
    """A transport that keeps what is written and never reads."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.open = True

    def write(self, data: Any) -> None:
        assert self.open, "written after the end"
        self.sent += data

    def writelines(self, pieces: Any) -> None:
        for piece in pieces:
            self.write(bytes(piece))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def close(self) -> None:
        self.open = False

    def abort(self) -> None:
        self.open = False

    def is_closing(self) -> bool:
        return not self.open


class Peer:
    """Somebody who speaks to a router, well or badly."""

    def __init__(self) -> None:
        self.router = Router(TICKETS, clock=CLOCK, limits=HOSTILE_LIMITS)
        self.connection = Connection(self.router, lambda: 0.0)
        self.wire = Wire()
        self.connection.connection_made(self.wire)

    def say(self, data: bytes) -> None:
        if self.wire.open:
            self.connection.data_received(data)

    def greet(self) -> None:
        self.say(frames.PREFACE + frames.settings({}))

    def token(self, stream: str, *, role: Role = Role.CLIENT, lease: str = "lease-1") -> str:
        now = CLOCK.now()
        expires = now + STREAM_LIFETIME
        ticket = Ticket(stream=stream, lease=lease, epoch=1, role=role, expires=expires)
        return TICKETS.mint(ticket, now=now)

    @property
    def credit(self) -> int:
        """Bytes the connection's window was given so far, the first time included."""
        at, found, sent = 0, 0, bytes(self.wire.sent)
        while at + frames.HEAD_SIZE <= len(sent):
            length, kind, _, stream = frames.parse_head(sent, at)
            start = at + frames.HEAD_SIZE
            if kind == frames.WINDOW_UPDATE and stream == 0:
                found += int.from_bytes(sent[start : start + 4], "big")
            at = start + length
        return found

    @property
    def goaway(self) -> int | None:
        """The code of the GOAWAY that was sent, if any."""
        at = 0
        sent = bytes(self.wire.sent)
        while at + frames.HEAD_SIZE <= len(sent):
            length, kind, _, _ = frames.parse_head(sent, at)
            if kind == frames.GOAWAY:
                start = at + frames.HEAD_SIZE + 4
                return int.from_bytes(sent[start : start + 4], "big")
            at += frames.HEAD_SIZE + length
        return None


def request(
    stream: int, *, path: str = PATH, end: int = frames.END_HEADERS, token: str = ""
) -> bytes:
    shown = (("authorization", f"Bearer {token}"),) if token else ()
    block = frames.header_block(((":method", "POST"), (":path", path), *shown))
    return frames.head(len(block), frames.HEADERS, end, stream) + block


def raw(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return frames.head(len(body), kind, flags, stream) + body
