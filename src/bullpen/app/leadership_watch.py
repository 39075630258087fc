"""Notices that another process is gone by the end of the connection to it.

A Lease that is not renewed expires after many seconds; a killed process closes its
connections at once. A standby replica keeps a connection to the leader, so that exporters,
which give up after five seconds without a controller, are hardly affected.

It reports a process as gone only after it was connected to it: an address that cannot be
reached at all proves nothing.
"""

from __future__ import annotations

import asyncio

KNOCKS = 3
KNOCK_SECONDS = 0.1
CONNECT_SECONDS_MAX = 1.0


class LeadershipWatch:
    """One connection to the current leader."""

    def __init__(self) -> None:
        self._address = ""
        self._met = False
        """Whether a process ever answered there."""

        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def gone(self, address: str, *, seconds: float) -> bool:
        """Whether the process that answered at ``address`` is gone; watches for ``seconds``."""
        if address != self._address:
            self.leave()
            self._address, self._met = address, False
        if self._streams is None:
            await self._connect()
        if self._streams is not None and not await self._ended(seconds):
            return False
        self.leave()
        return self._met and await self._refuses()

    def leave(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _ended(self, seconds: float) -> bool:
        assert self._streams is not None
        try:
            async with asyncio.timeout(seconds):
                return not await self._streams[0].read(1)
        except TimeoutError:
            return False
        except OSError:
            return True

    async def _refuses(self) -> bool:
        """Whether the port is closed, rather than only the connection."""
        for _ in range(KNOCKS):
            await asyncio.sleep(KNOCK_SECONDS)
            if not await self._connect():
                return False
        return True

    async def _connect(self) -> bool:
        """Try to connect; returns whether the machine itself refused the connection."""
        host, _, port = self._address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                self._streams = await asyncio.open_connection(host.strip("[]"), int(port))
                self._met = True
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError, ValueError):
            return False
        return False
