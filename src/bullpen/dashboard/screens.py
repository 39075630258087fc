"""The screen of a target: bytes of its VNC server, passed on as they are.

The output is one long response, which is read from the target only as fast as the browser reads
it; input comes in requests of its own. So a screen has the same sign-in and the same protection
against other sites as everything else, which a WebSocket would not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from jumpstarter_protocol import router_pb2

from bullpen.client.exporter import FRAME_BYTES_MAX, DriverReport, Exporter
from bullpen.dashboard.feed import QUIET_SECONDS
from bullpen.errors import Unavailable

SCREENS_MAX = 4
"""Open screens of one target."""

INPUT_SECONDS_MAX = 10.0
"""How long a target may take to accept input."""


class Screen:
    """One connection to a VNC server."""

    def __init__(self, id: str) -> None:
        self.id = id
        self._stream: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()

    async def run(self, exporter: Exporter, driver: DriverReport) -> None:
        """Hold the connection until ``close``."""
        async with exporter.stream(driver) as stream:
            self._stream.set_result(stream)
            await self._over.wait()

    def close(self) -> None:
        self._over.set()
        self._stream.cancel()

    async def output(self, allowed: Callable[[], Awaitable[bool]]) -> AsyncIterator[bytes]:
        """What the server sends, until it hangs up or the viewer may not see it any more."""
        try:
            stream = await self._connected()
            reading = asyncio.ensure_future(stream.read())
            checking = asyncio.ensure_future(asyncio.sleep(QUIET_SECONDS))
            try:
                while True:
                    parts = (reading, checking)
                    await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
                    if checking.done():
                        if not await allowed():
                            return
                        checking = asyncio.ensure_future(asyncio.sleep(QUIET_SECONDS))
                    if not reading.done():
                        continue
                    frame = reading.result()
                    if frame is grpc.aio.EOF or frame.frame_type == router_pb2.FRAME_TYPE_GOAWAY:
                        return
                    if frame.payload:
                        yield frame.payload
                    reading = asyncio.ensure_future(stream.read())
            finally:
                reading.cancel()
                checking.cancel()
                await asyncio.gather(reading, checking, return_exceptions=True)
        except (grpc.aio.AioRpcError, Unavailable):
            return  # the page sees the end, and offers to connect again
        finally:
            self.close()

    async def send(self, data: bytes) -> None:
        stream = await self._connected()
        try:
            async with asyncio.timeout(INPUT_SECONDS_MAX):
                for start in range(0, len(data), FRAME_BYTES_MAX):
                    piece = data[start : start + FRAME_BYTES_MAX]
                    await stream.write(router_pb2.StreamRequest(payload=piece))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
            raise Unavailable("the screen takes no input; connect again") from None

    async def _connected(self) -> Any:
        try:
            return await asyncio.shield(self._stream)
        except asyncio.CancelledError:
            if not self._stream.cancelled():
                raise
            raise Unavailable("the screen was closed; connect again") from None
