"""Consoles of leased targets: one connection to the target, any number of viewers.

The connection goes through the router, as that of any other client of the lease's holder. The
last output is kept, so that a page that comes back continues where it was.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from jumpstarter_protocol import router_pb2

from bullpen.client.config import ClientConfig
from bullpen.client.exporter import (
    DriverReport,
    Exporter,
    flasher_of,
    power_of,
    screen_of,
    serial_of,
)
from bullpen.client.tunnel import Tunnel
from bullpen.dashboard.feed import ALIVE, POSITION_DIGITS_MAX, QUIET_SECONDS, event
from bullpen.dashboard.flashing import Flash
from bullpen.dashboard.screens import SCREENS_MAX, Screen
from bullpen.errors import BadRequest, Conflict, LabError, NotFound, TooManyRequests, Unavailable
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
    """One lease's target: its serial port, if it has one, and what is used beside it.

    Runs while a page shows the console, and a while longer.
    """

    def __init__(self, config: ClientConfig, dial: Dialled, ids: Ids, *, epoch: str) -> None:
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
        self._ids = ids
        self._screens: dict[str, Screen] = {}
        self._flash: Flash | None = None
        self._running: set[asyncio.Task[None]] = set()
        """Of its screens and of the image that is flashed."""

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
            try:
                if _has(serial_of, drivers):
                    async with exporter.stream(serial_of(drivers)) as stream:
                        self._became("open", "")
                        await self._pass(stream)
                else:
                    self._became("open", "")
                    await exporter.held()
            finally:
                for task in self._running:
                    task.cancel()
                await asyncio.gather(*self._running, return_exceptions=True)

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
        if self.state == "open" and "serial" not in self._abilities():
            raise NotFound("the target has no serial port to type at")
        if self._waiting_bytes + len(data) > INPUT_BYTES_MAX:
            raise TooManyRequests("the target does not take input fast enough; wait and try again")
        self._waiting_bytes += len(data)
        self._input.put_nowait(data)

    async def power(self, action: str) -> None:
        """Switch the target on or off, or off and on; raises ``NotFound`` if it has no power."""
        if action not in POWER_ACTIONS:
            raise BadRequest(f"the power actions are {', '.join(sorted(POWER_ACTIONS))}")
        target = await self._connected_target()
        driver = power_of(target.drivers)
        if action != "cycle":
            await target.exporter.call(driver, action)
            return
        await target.exporter.call(driver, "off")
        await asyncio.sleep(CYCLE_SECONDS)
        await target.exporter.call(driver, "on")

    async def _connected_target(self) -> _Target:
        try:
            return await asyncio.shield(self._target)
        except asyncio.CancelledError:
            if not self._target.cancelled():
                raise
            raise Unavailable(f"the console is closed: {self.message}") from None

    async def open_screen(self) -> Screen:
        """A new connection to the target's VNC server; raises ``NotFound`` if it has none."""
        target = await self._connected_target()
        driver = screen_of(target.drivers)
        if len(self._screens) >= SCREENS_MAX:
            raise TooManyRequests("the screen of this target is open too often; close some pages")
        screen = Screen(self._ids.uid())
        self._screens[screen.id] = screen

        def ended() -> None:
            screen.close()
            del self._screens[screen.id]

        self._start(screen.run(target.exporter, driver), ended)
        return screen

    def screen(self, id: str) -> Screen:
        found = self._screens.get(id)
        if found is None:
            raise NotFound("the screen is not open any more; connect again")
        return found

    async def flash(self, size: int, partition: str) -> Flash:
        """Begin to flash an image; raises ``NotFound`` if the target has no flasher."""
        target = await self._connected_target()
        flasher = flasher_of(target.drivers)
        if self._flash is not None and not self._flash.over:
            raise Conflict("an image is being flashed; wait until that is done, then try again")
        flash = self._flash = Flash(self._ids.uid(), size)
        self._start(flash.run(target.exporter, flasher, partition), flash.interrupt)
        return flash

    def flashing(self, id: str) -> Flash:
        """The image that is flashed, or was flashed last."""
        if self._flash is None or self._flash.id != id:
            raise NotFound("this image is not being flashed any more; flash it again")
        return self._flash

    def _start(self, work: Coroutine[Any, Any, None], ended: Callable[[], None]) -> None:
        """Run ``work`` until the console closes; call ``ended`` after it, however it ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)

        def done(_: object) -> None:
            self._running.discard(task)
            ended()
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, (LabError, grpc.aio.AioRpcError)):
                log.error("a screen or an image failed", exc_info=error)

        task.add_done_callback(done)

    def _abilities(self) -> list[str]:
        """What the target has."""
        if not self._target.done() or self._target.cancelled():
            return []
        drivers = self._target.result().drivers
        return [name for name, driver_of in _ABILITIES if _has(driver_of, drivers)]

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
                    yield event(
                        "state",
                        {"state": self.state, "message": self.message, "has": self._abilities()},
                    )
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


_ABILITIES = (
    ("serial", serial_of),
    ("power", power_of),
    ("flash", flasher_of),
    ("screen", screen_of),
)


def _has(
    driver_of: Callable[[tuple[DriverReport, ...]], DriverReport],
    drivers: tuple[DriverReport, ...],
) -> bool:
    try:
        driver_of(drivers)
    except NotFound:
        return False
    return True


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
        console = Console(self._config, dial, self._ids, epoch=self._ids.uid())
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
