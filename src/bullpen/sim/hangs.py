"""Processes that hang without dying: nothing they do reaches their peers until they go on.

The kernel of a process that hangs still acknowledges what is sent to it, so its connections stay
open and its peers notice nothing. When it goes on, it does what it was about to do, on old facts.
"""

from __future__ import annotations

import asyncio

LOOK = 0.1


class Hangs:
    """By name, until when services, routers and exporters hang."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def hang(self, name: str, seconds: float) -> None:
        until = asyncio.get_running_loop().time() + seconds
        self._until[name] = max(until, self._until.get(name, 0.0))

    def heal(self) -> None:
        self._until.clear()

    def hangs(self, name: str) -> bool:
        return asyncio.get_running_loop().time() < self._until.get(name, 0.0)

    async def awake(self, name: str) -> None:
        """Wait until it goes on; returns at once if it does not hang."""
        while self.hangs(name):  # noqa: ASYNC110 - ``heal`` ends it early
            await asyncio.sleep(LOOK)
