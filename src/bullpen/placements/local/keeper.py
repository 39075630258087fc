"""Keeps a zygote running whenever one is needed, and passes on its events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from bullpen import __version__
from bullpen.errors import Unreachable
from bullpen.placements.local import connection
from bullpen.placements.local.connection import Link, ZygoteSettings
from bullpen.placements.local.layout import Layout
from bullpen.placements.local.wire import Event, Hello, Quit

log = logging.getLogger("bullpen.placements")

RESTART_SECONDS = 1.0
"""Pause between two attempts to start one."""


class ZygoteKeeper:
    def __init__(
        self,
        places: Layout,
        settings: ZygoteSettings,
        *,
        heard: Callable[[Event], None],
        lost: Callable[[], Awaitable[None]],
    ) -> None:
        self._places = places
        self._settings = settings
        self._heard = heard
        self._lost = lost
        self._wanted = asyncio.Event()
        self._news = asyncio.Event()
        """Set when a zygote runs, or when it is known why none does."""

        self.link: Link | None = None
        self.problem = ""
        """Why no zygote starts; empty once one does."""

    def want(self) -> None:
        """A zygote is needed, now or soon."""
        self._wanted.set()

    async def ready(self) -> Link:
        """The zygote, once it runs. Raises ``Unreachable`` if it does not start."""
        self.want()
        while self.link is None:
            if self.problem:
                raise Unreachable(self.problem)
            self._news.clear()
            await self._news.wait()
        return self.link

    async def take_over(self) -> Hello | None:
        """Connect to a previous process's zygote if it runs and has our protocol version."""
        link = await connection.find(self._places)
        if link is not None and link.hello.version != __version__:
            log.info("stopping the zygote of another version", extra={"key": link.hello.version})
            link.send(Quit())
            await link.ended()
            link = None
        if link is None:
            connection.forget(self._places, None)
            return None
        self.link = link
        return link.hello

    async def run(self) -> None:
        """Start a zygote when first needed and again whenever it ends, until cancelled."""
        while True:
            if self.link is None:
                await self._wanted.wait()
                await self._start()
            if self.link is not None:
                async for event in self.link.events():
                    self._heard(event)
                await self._mourn(self.link)

    async def _start(self) -> None:
        try:
            self.link = await connection.start(self._places, self._settings)
        except Unreachable as error:
            facts = {"key": self._places.instances, "cause": error.message}
            log.error("zygote not started", extra=facts)  # noqa: TRY400 - its cause is said
            self.problem = error.message
            self._news.set()
            await asyncio.sleep(RESTART_SECONDS)
        else:
            self.problem = ""
            self._news.set()

    async def _mourn(self, link: Link) -> None:
        """The zygote ended unexpectedly, and its exporters with it."""
        log.error("zygote lost", extra={"key": link.identity.pid})
        self.link = None
        await link.ended()
        await self._lost()
        connection.forget(self._places, link.identity)

    def leave(self) -> None:
        """Let the zygote go on; a later process finds it, or it ends by itself."""
        link, self.link = self.link, None
        if link is not None:
            link.close()

    async def end(self) -> None:
        """Stop the zygote and remove its files."""
        link, self.link = self.link, None
        if link is not None:
            link.send(Quit())
            await link.ended()
        connection.forget(self._places, None)
        self._places.zygote_log.unlink(missing_ok=True)
