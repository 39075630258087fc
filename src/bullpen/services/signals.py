"""Waiting for a change, with a time limit, instead of polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import TypeVar

T = TypeVar("T")


class Signals:
    """Wakes every waiter of a key. It does not say what changed: waiters look again."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, dict[asyncio.Future[None], None]] = {}
        """In the order they began to wait, which is the order they are woken in."""

    def notify(self, key: Hashable) -> None:
        for future in self._waiting.pop(key, ()):
            _wake(future)

    async def until(
        self, keys: Callable[[], tuple[Hashable, ...]], look: Callable[[], T | None], seconds: float
    ) -> T | None:
        """What ``look`` returns, as soon as it is not None; None after the time limit.

        ``keys`` is evaluated again before each wait, because the relevant keys can change too.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            found = look()
            left = deadline - loop.time()
            if found is not None or left <= 0:
                return found
            await self._wait(keys(), left)

    async def _wait(self, keys: tuple[Hashable, ...], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        for key in keys:
            self._waiting.setdefault(key, {})[future] = None
        alarm = loop.call_later(seconds, _wake, future)
        try:
            await future
        finally:
            alarm.cancel()
            for key in keys:
                waiters = self._waiting.get(key)
                if waiters is not None:
                    waiters.pop(future, None)
                    if not waiters:
                        del self._waiting[key]


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
