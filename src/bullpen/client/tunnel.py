"""A Unix socket whose connections reach the leased exporter through a router.

Each accepted connection is dialled and passed on as a stream of its own, so that Jumpstarter's
own tools work with the socket (``JUMPSTARTER_HOST``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from jumpstarter_protocol import jumpstarter_pb2, router_pb2, router_pb2_grpc

from bullpen.client.config import ClientConfig
from bullpen.client.connection import Connection, our_errors, secure_channel
from bullpen.errors import LabError

log = logging.getLogger("bullpen.client")

FRAME_BYTES_MAX = 1 << 16
DIAL_SECONDS_MAX = 30.0
DIAL_AGAIN_SECONDS = 0.3


Dial = Callable[[], Awaitable[tuple[str, str]]]
"""Asks for a stream: the router's endpoint, and the token to present there."""


def dialling(connection: Connection, lease: str) -> Dial:
    """Asks the service over gRPC for a stream to the exporter of a lease."""
    request = jumpstarter_pb2.DialRequest(lease_name=lease)

    async def dial() -> tuple[str, str]:
        with our_errors(connection.config.endpoint):
            answer = await connection.controller.Dial(request, metadata=connection.caller)
            return answer.router_endpoint, answer.router_token

    return dial


class Tunnel:
    """Passes connections of a socket on to the exporter of one lease."""

    def __init__(self, config: ClientConfig, dial: Dial) -> None:
        """``config`` says which certificates of routers to trust."""
        self._config = config
        self._dial = dial
        self._serving: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Accept connections at ``path``; those that are open in the end are closed."""
        server = await asyncio.start_unix_server(self._accept, path, limit=FRAME_BYTES_MAX)
        try:
            yield
        finally:
            server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not a coroutine: the server would report the cancellation of its task as an error.
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            endpoint, token = await self._dialled()
            async with secure_channel(self._config, endpoint, token) as channel:
                stream = router_pb2_grpc.RouterServiceStub(channel).Stream()
                await passed(reader, writer, stream)
        except (
            LabError,
            grpc.aio.AioRpcError,
            asyncio.InvalidStateError,  # a write after the stream was cut
            TimeoutError,
            OSError,
        ) as error:
            # The caller sees a closed connection, and Jumpstarter's tools try again.
            log.debug("connection to the exporter ended: %s", error)
        finally:
            writer.close()

    async def _dialled(self) -> tuple[str, str]:
        """Ask for a stream; retried while the exporter is not there yet."""
        async with asyncio.timeout(DIAL_SECONDS_MAX):
            while True:
                try:
                    return await self._dial()
                except LabError:
                    await asyncio.sleep(DIAL_AGAIN_SECONDS)


async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: Any) -> None:
    """Pass bytes both ways until both directions have ended, or one has failed."""
    directions = (
        asyncio.ensure_future(_outwards(reader, stream)),
        asyncio.ensure_future(_inwards(stream, writer)),
    )
    try:
        await asyncio.gather(*directions)
    finally:
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)


async def _outwards(reader: asyncio.StreamReader, stream: Any) -> None:
    while data := await reader.read(FRAME_BYTES_MAX):
        await stream.write(router_pb2.StreamRequest(payload=data))
    await stream.write(router_pb2.StreamRequest(frame_type=router_pb2.FRAME_TYPE_GOAWAY))
    await stream.done_writing()


async def _inwards(stream: Any, writer: asyncio.StreamWriter) -> None:
    while (frame := await stream.read()) is not grpc.aio.EOF:
        if frame.frame_type == router_pb2.FRAME_TYPE_GOAWAY:
            break
        if frame.frame_type == router_pb2.FRAME_TYPE_DATA and frame.payload:
            writer.write(frame.payload)
            await writer.drain()
    if writer.can_write_eof():
        with contextlib.suppress(OSError):
            writer.write_eof()
