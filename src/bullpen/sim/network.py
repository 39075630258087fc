"""Calls and streams between players and the service, over a lossy and slow network.

A call may be lost on the way there, without any effect, or on the way back, after it was
carried out. A stream keeps its order and ends when either side ends. A peer that is cut off
hears nothing, not even that its streams ended: the service ends them when it notices, as
late as in production, and the peer hears of it when it is connected again. A router drops
the side of a stream whose link is cut in the same way, and with it the other side.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, Generic, TypeVar

from bullpen.app.services import Services
from bullpen.errors import LabError, Unreachable
from bullpen.runtime.silence import DETECTION_SECONDS_MAX, SILENCE_SECONDS_MAX
from bullpen.services.peers import Peer
from bullpen.sim.hangs import Hangs
from bullpen.sim.plan import Weather
from bullpen.sim.process import Process
from bullpen.sim.routers import Leg, PlayedRouter

T = TypeVar("T")

DEADLINE = 10.0
"""How long a caller waits for an answer that was lost."""


def router_link(peer: str) -> str:
    """The name of the link between a peer and the routers, which is cut by itself."""
    return f"router-{peer}"


class Network:
    def __init__(
        self,
        chance: random.Random,
        weather: Weather,
        front: Callable[[], Process | None],
        hangs: Hangs,
    ) -> None:
        self.weather = weather
        self._hangs = hangs
        self._chance = chance
        self._front = front
        self._cut: dict[str, float] = {}
        self._streams: dict[str, list[_Stream[Any]]] = {}
        self._legs: dict[str, list[tuple[PlayedRouter, Leg]]] = {}
        """Sides of streams through routers, by the link they came over."""

    def cut(self, peer: str, seconds: float) -> None:
        """Drop everything to and from a peer for this long."""
        loop = asyncio.get_running_loop()
        self._cut[peer] = max(loop.time() + seconds, self._cut.get(peer, 0.0))
        for stream in self._streams.get(peer, ()):
            noticed = self._chance.uniform(SILENCE_SECONDS_MAX, DETECTION_SECONDS_MAX)
            loop.call_later(noticed, self._notice, peer, stream)
        for router, leg in self._legs.get(peer, ()):
            loop.call_later(DETECTION_SECONDS_MAX, self._drop, peer, router, leg)

    def _notice(self, peer: str, stream: _Stream[Any]) -> None:
        """The service looks whether a peer that was cut off can be reached again."""
        if self.is_cut(peer):
            stream.abandon()

    def _drop(self, link: str, router: PlayedRouter, leg: Leg) -> None:
        """The router looks whether a side that was cut off can be reached again."""
        if self.is_cut(link):
            router.leave(leg)

    def join(self, peer: str, router: PlayedRouter, token: str) -> Leg | None:
        """A peer connects to a router; None if its link is cut. Raises as ``arrive``."""
        link = router_link(peer)
        if self.is_cut(link):
            return None
        mine = self._legs.setdefault(link, [])
        joined: list[tuple[PlayedRouter, Leg]] = []

        def closed() -> None:
            if joined:
                mine.remove(joined[0])

        leg = router.arrive(token, closed)
        if router.holds(leg):
            joined.append((router, leg))
            mine.append(joined[0])
        return leg

    def heal(self) -> None:
        self._cut.clear()
        self.weather = Weather()

    def is_cut(self, peer: str) -> bool:
        return asyncio.get_running_loop().time() < self._cut.get(peer, 0.0)

    async def call(self, peer: str, work: Callable[[Services], Coroutine[Any, Any, T]]) -> T:
        """The service's answer; raises its errors, and ``Unreachable``."""
        process = await self._reach(peer)
        answer = process.handle(work)
        if self._happens(self.weather.doubled):
            process.handle(work)
        result = await answer
        await self._hangs.awake(process.name)
        await self._hop(peer)
        return result

    async def _reach(self, peer: str) -> Process:
        """The process that a message of the peer arrives at."""
        await self._hop(peer)
        process = self._front()
        if process is not None:
            await self._hangs.awake(process.name)
        if process is None or not process.ready:
            raise Unreachable("connection refused")
        return process

    @contextlib.asynccontextmanager
    async def stream(
        self,
        peer: str,
        work: Callable[[Services, Peer], Coroutine[Any, Any, AsyncGenerator[T, None]]],
    ) -> AsyncIterator[AsyncIterator[T]]:
        """The messages of the service, until one side ends."""
        process = await self._reach(peer)
        stream: _Stream[T] = _Stream(self._hangs)
        mine = self._streams.setdefault(peer, [])
        mine.append(stream)
        stream.handler = handler = process.spawn(stream.feed(work, process))
        handler.add_done_callback(lambda _: stream.end(Unreachable("the connection was closed")))
        try:
            # The garbage collector would close it at a time that the seed does not determine.
            async with contextlib.aclosing(self._read(peer, stream)) as said:
                yield said
        finally:
            mine.remove(stream)
            handler.cancel()

    async def _read(self, peer: str, stream: _Stream[T]) -> AsyncGenerator[T, None]:
        while True:
            try:
                item = await stream.next()
            except LabError:
                await self._connected(peer)
                raise
            await asyncio.sleep(self._delay())
            await self._connected(peer)
            stream.check_reachable()
            yield item

    async def _connected(self, peer: str) -> None:
        """Wait until the peer hears again; ``heal`` ends a cut early."""
        while self.is_cut(peer) or self._hangs.hangs(peer):  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def _hop(self, peer: str) -> None:
        await self._hangs.awake(peer)
        await asyncio.sleep(self._delay())
        if self.is_cut(peer) or self._happens(self.weather.lost):
            await asyncio.sleep(DEADLINE * self._chance.random())
            raise Unreachable("the deadline passed")

    def _delay(self) -> float:
        return self._chance.uniform(0.0001, self.weather.delay_max)

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._chance.random() < chance


class _Stream(Generic[T]):
    """One server stream: its unread messages, and how it ended."""

    def __init__(self, hangs: Hangs) -> None:
        self._hangs = hangs
        self._items: asyncio.Queue[T | None] = asyncio.Queue(maxsize=1_000)
        self._error: LabError | None = None
        self._peer = Peer()
        self.handler: asyncio.Task[None] | None = None
        """The service's side."""

    async def feed(
        self,
        work: Callable[[Services, Peer], Coroutine[Any, Any, AsyncGenerator[T, None]]],
        process: Process,
    ) -> None:
        assert process.services is not None
        try:
            async with contextlib.aclosing(await work(process.services, self._peer)) as said:
                async for item in said:
                    await self._hangs.awake(process.name)
                    if not process.alive:
                        break
                    await self._items.put(item)
        except LabError as error:
            self.end(error)
        except Exception as error:
            process.failed(error)

    def end(self, error: LabError) -> None:
        if self._error is None:
            self._error = error
            with contextlib.suppress(asyncio.QueueFull):
                self._items.put_nowait(None)

    def abandon(self) -> None:
        """The service's side ends because the peer is unreachable."""
        self._peer.unreachable = True
        if self.handler is not None:
            self.handler.cancel()

    def check_reachable(self) -> None:
        """Raise if the service gave the peer up: what it sent before never arrives."""
        if self._peer.unreachable:
            raise Unreachable("the connection was reset")

    async def next(self) -> T:
        if self._items.empty() and self._error is not None:
            raise self._error
        item = await self._items.get()
        if item is None:
            assert self._error is not None
            raise self._error
        return item
