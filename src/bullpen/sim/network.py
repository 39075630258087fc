"""Calls and streams between players and the service, over a lossy and slow network.

A call may be lost on the way there, without any effect, or on the way back, after it was
carried out. A stream keeps its order and ends when either side ends, or when it was cut for
longer than a keepalive.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, Generic, TypeVar

from bullpen.app.services import Services
from bullpen.errors import LabError, Unreachable
from bullpen.sim.plan import Weather
from bullpen.sim.process import Process

T = TypeVar("T")

DEADLINE = 10.0
"""How long a caller waits for an answer that was lost."""

KEEPALIVE = 5.0
"""How long a silent connection is considered alive."""


class Network:
    def __init__(
        self, chance: random.Random, weather: Weather, front: Callable[[], Process | None]
    ) -> None:
        self.weather = weather
        self._chance = chance
        self._front = front
        self._cut: dict[str, float] = {}
        self._streams: dict[str, list[_Stream[Any]]] = {}

    def cut(self, peer: str, seconds: float) -> None:
        """Drop everything to and from a peer for this long."""
        loop = asyncio.get_running_loop()
        self._cut[peer] = max(loop.time() + seconds, self._cut.get(peer, 0.0))
        if seconds > KEEPALIVE:
            for stream in self._streams.get(peer, ()):
                loop.call_later(KEEPALIVE, stream.end, Unreachable("keepalive"))

    def heal(self) -> None:
        self._cut.clear()
        self.weather = Weather()

    def is_cut(self, peer: str) -> bool:
        return asyncio.get_running_loop().time() < self._cut.get(peer, 0.0)

    async def call(self, peer: str, work: Callable[[Services], Coroutine[Any, Any, T]]) -> T:
        """The service's answer; raises its errors, and ``Unreachable``."""
        await self._hop(peer)
        process = self._front()
        if process is None:
            raise Unreachable("connection refused")
        answer = process.handle(work)
        if self._happens(self.weather.doubled):
            process.handle(work)
        result = await answer
        await self._hop(peer)
        return result

    @contextlib.asynccontextmanager
    async def stream(
        self, peer: str, work: Callable[[Services], Coroutine[Any, Any, AsyncGenerator[T, None]]]
    ) -> AsyncIterator[AsyncIterator[T]]:
        """The messages of the service, until one side ends."""
        await self._hop(peer)
        process = self._front()
        if process is None:
            raise Unreachable("connection refused")
        stream: _Stream[T] = _Stream()
        mine = self._streams.setdefault(peer, [])
        mine.append(stream)
        handler = process.spawn(stream.feed(work, process))
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
            item = await stream.next()
            await asyncio.sleep(self._delay())
            while self.is_cut(peer):
                await asyncio.sleep(0.1)
                stream.check()
            yield item

    async def _hop(self, peer: str) -> None:
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

    def __init__(self) -> None:
        self._items: asyncio.Queue[T | None] = asyncio.Queue(maxsize=1_000)
        self._error: LabError | None = None

    async def feed(
        self,
        work: Callable[[Services], Coroutine[Any, Any, AsyncGenerator[T, None]]],
        process: Process,
    ) -> None:
        assert process.services is not None
        try:
            async with contextlib.aclosing(await work(process.services)) as said:
                async for item in said:
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

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    async def next(self) -> T:
        if self._items.empty():
            self.check()
        item = await self._items.get()
        if item is None:
            assert self._error is not None
            raise self._error
        return item
