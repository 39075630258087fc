"""Consoles of leased targets: one connection to the serial port, any number of viewers.

The connection goes through the router, as that of any other client of the lease's holder. The
last output is kept, so that a page that comes back continues where it was.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from jumpstarter_protocol import router_pb2

from bullpen.client.config import ClientConfig
from bullpen.client.exporter import DriverReport, Exporter, power_of, serial_of
from bullpen.client.tunnel import Tunnel
from bullpen.dashboard.feed import ALIVE, POSITION_DIGITS_MAX, QUIET_SECONDS, event
from bullpen.errors import BadRequest, LabError, NotFound, TooManyRequests, Unavailable
from bullpen.kit.ids import Ids
from bullpen.services.dialing import Call

log = logging.getLogger("bullpen.dashboard")

CONSOLES_MAX = 200
"""Open consoles of all people together."""

OUTPUT_BYTES_MAX = 256 * 1024
"""Output that is kept for pages that come later, or come back."""

INPUT_BYTES_MAX = 64 * 1024
"""Input that waits for a serial port which does not take it."""

LINGER_SECONDS = 60.0
"""A console without viewers is closed after this time."""

POWER_ACTIONS = frozenset({"on", "off", "cycle"})
CYCLE_SECONDS = 1.0
"""Between off and on."""

Key = tuple[str, str]
"""Namespace and name of the lease."""

Dialled = Callable[[], Awaitable[Call]]


class Scrollback:
    """The last bytes of an output, by their position in all of it. Pure."""

    def __init__(self, limit: int = OUTPUT_BYTES_MAX) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.end = 0
        """The position after the last byte."""

    def add(self, data: bytes) -> None:
        self._kept += data
        del self._kept[: max(len(self._kept) - self._limit, 0)]
        self.end += len(data)

    def since(self, position: int) -> bytes:
        """What follows ``position``, as far as it is kept; everything for an unknown one."""
        start = self.end - len(self._kept)
        if not start <= position <= self.end:
            return bytes(self._kept)
        return bytes(self._kept[position - start :])


@dataclass(frozen=True, slots=True)
class _Target:
    """A connected exporter."""

    exporter: Exporter
    drivers: tuple[DriverReport, ...]


class Console:
    """One lease's serial port. Runs while somebody looks, and a while longer."""

    def __init__(self, config: ClientConfig, dial: Dialled, *, epoch: str) -> None:
        """``epoch`` tells positions in its output from those of an earlier console."""
        self._config = config
        self._dial = dial
        self._epoch = epoch
        self.scrollback = Scrollback()
        self.state, self.message = "connecting", ""
        self.viewers = 0
        self._news = asyncio.Event()
        self._input: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting_bytes = 0
        self._target: asyncio.Future[_Target] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Connect and pass bytes until the connection ends."""
        try:
            with tempfile.TemporaryDirectory(prefix="bullpen-") as directory:
                await self._connected(Path(directory) / "socket")
            self._became("closed", "the connection to the target has ended")
        except (LabError, grpc.aio.AioRpcError, OSError) as error:
            text = error.message if isinstance(error, LabError) else "the connection was lost"
            self._became("closed", text)
        finally:
            self._target.cancel()
            if self.state != "closed":
                self._became("closed", "the console was closed")

    async def _connected(self, socket: Path) -> None:
        async def dial() -> tuple[str, str]:
            call = await self._dial()
            return call.endpoint, call.token

        async with Tunnel(self._config, dial).listening(socket), Exporter(socket) as exporter:
            await exporter.ready()
            drivers = await exporter.drivers()
            self._target.set_result(_Target(exporter, drivers))
            async with exporter.stream(serial_of(drivers)) as stream:
                self._became("open", "")
                await self._pass(stream)

    async def _pass(self, stream: Any) -> None:
        """Pass bytes until the output ends, or one direction fails."""
        directions = [
            asyncio.ensure_future(part) for part in (self._print(stream), self._type(stream))
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            results = await asyncio.gather(*directions, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _print(self, stream: Any) -> None:
        while (frame := await stream.read()) is not grpc.aio.EOF:
            if frame.frame_type == router_pb2.FRAME_TYPE_GOAWAY:
                return
            self.scrollback.add(frame.payload)
            self._news.set()

    async def _type(self, stream: Any) -> None:
        while True:
            data = await self._input.get()
            await stream.write(router_pb2.StreamRequest(payload=data))
            self._waiting_bytes -= len(data)

    def type(self, data: bytes) -> None:
        """Send input; raises ``TooManyRequests`` if the target takes none."""
        if self.state == "closed":
            raise Unavailable(f"the console is closed: {self.message}")
        if self._waiting_bytes + len(data) > INPUT_BYTES_MAX:
            raise TooManyRequests("the target does not take input fast enough; wait and try again")
        self._waiting_bytes += len(data)
        self._input.put_nowait(data)

    async def power(self, action: str) -> None:
        """Switch the target on or off, or off and on; raises ``NotFound`` if it has no power."""
        if action not in POWER_ACTIONS:
            raise BadRequest(f"the power actions are {', '.join(sorted(POWER_ACTIONS))}")
        try:
            target = await asyncio.shield(self._target)
        except asyncio.CancelledError:
            if not self._target.cancelled():
                raise
            raise Unavailable(f"the console is closed: {self.message}") from None
        driver = power_of(target.drivers)
        if action != "cycle":
            await target.exporter.call(driver, action)
            return
        await target.exporter.call(driver, "off")
        await asyncio.sleep(CYCLE_SECONDS)
        await target.exporter.call(driver, "on")

    def _became(self, state: str, message: str) -> None:
        self.state, self.message = state, message
        self._news.set()

    async def view(
        self, last_event_id: str, allowed: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[bytes]:
        """Output and changes of the state, as server-sent events, after those seen before."""
        position, told = self._resumed(last_event_id), ""
        self.viewers += 1
        try:
            while await allowed():
                state = f"{self.state} {self.message}"
                output = self.scrollback.since(position)
                if state != told:
                    told = state
                    yield event("state", {"state": self.state, "message": self.message})
                position = self.scrollback.end
                if output:
                    text = base64.b64encode(output).decode()
                    yield event("output", text, id=f"{self._epoch}-{position}")
                elif self.state == "closed":
                    return
                else:
                    yield ALIVE
                await self._next(position, state)
        finally:
            self.viewers -= 1

    def _resumed(self, last_event_id: str) -> int:
        epoch, _, position = last_event_id.rpartition("-")
        known = epoch == self._epoch and position.isascii() and position.isdigit()
        return int(position[:POSITION_DIGITS_MAX]) if known else -1

    async def _next(self, position: int, state: str) -> None:
        if self.scrollback.end != position or f"{self.state} {self.message}" != state:
            return
        self._news.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(QUIET_SECONDS):
                await self._news.wait()


class Consoles:
    """The open consoles, by lease."""

    def __init__(self, config: ClientConfig, ids: Ids) -> None:
        self._config = config
        self._ids = ids
        self._open: dict[Key, tuple[Console, asyncio.Task[None]]] = {}

    def close(self) -> None:
        for _, task in self._open.values():
            task.cancel()

    def open(self, key: Key, dial: Dialled) -> Console:
        """The console of a lease, which is opened unless it is open."""
        found = self.find(key)
        if found is not None:
            return found
        if len(self._open) >= CONSOLES_MAX:
            raise TooManyRequests("too many consoles are open; close some and try again")
        console = Console(self._config, dial, epoch=self._ids.uid())
        task = asyncio.get_running_loop().create_task(self._run(key, console))
        self._open[key] = (console, task)
        return console

    def find(self, key: Key) -> Console | None:
        found = self._open.get(key)
        return found[0] if found is not None and found[0].state != "closed" else None

    def get(self, key: Key) -> Console:
        found = self.find(key)
        if found is None:
            raise NotFound("the console of this lease is not open; open its page first")
        return found

    async def _run(self, key: Key, console: Console) -> None:
        running = asyncio.ensure_future(console.run())
        try:
            while not running.done():
                await asyncio.wait((running,), timeout=LINGER_SECONDS)
                if not console.viewers:
                    break
        finally:
            running.cancel()
            results = await asyncio.gather(running, return_exceptions=True)
            if isinstance(results[0], Exception):
                log.error("a console failed", exc_info=results[0])
            if self._open.get(key, (None,))[0] is console:
                del self._open[key]
