"""Limits the connections of the gRPC port.

gRPC accepts connections by itself and without a limit. When there are many, this module
inspects the sockets of the process and shuts down the surplus; gRPC then sees them end and
closes them. Connections that have sent least go first: a program that only holds
connections open has sent nothing, and an exporter or client that was ever served has sent
its token.

Connections that do not finish their handshake are closed by gRPC itself, see
``server.OPTIONS``.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Iterable

from bullpen.runtime.connections import Bounds
from bullpen.services.grpc import sockets
from bullpen.services.grpc.sockets import Connection

log = logging.getLogger("bullpen.grpc")

LOOK_SECONDS = 0.25


def surplus(connections: Iterable[Connection], bounds: Bounds) -> tuple[Connection, ...]:
    """The connections to close, so that the limits per address and in total hold."""
    kept_of: Counter[str] = Counter()
    kept, gone = 0, []
    # Of two that have sent the same, the one with the larger descriptor is probably newer.
    for found in sorted(connections, key=lambda c: (-c.received, c.descriptor)):
        if kept < bounds.total and kept_of[found.address] < bounds.per_address:
            kept += 1
            kept_of[found.address] += 1
        else:
            gone.append(found)
    return tuple(gone)


class Guard:
    def __init__(self, name: str, port: int, bounds: Bounds) -> None:
        self.name = name
        self._port = port
        self._bounds = bounds
        self.displaced = self.refused = 0

    async def run(self) -> None:
        """Check periodically until cancelled."""
        least = min(self._bounds.total, self._bounds.per_address)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if _lowest_free() > least:
                self._shed()

    def _shed(self) -> None:
        gone = surplus(sockets.connections(self._port), self._bounds)
        for connection in gone:
            sockets.shut_down(connection.descriptor, self._port)
        if gone:
            self.displaced += len(gone)
            log.warning(
                "least active connections closed in favour of new ones",
                extra={"key": self.name, "count": len(gone), "total": self.displaced},
            )


def _lowest_free() -> int:
    """The lowest free descriptor: at least as many are open. Cheap, unlike counting them."""
    try:
        found = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return 1 << 30
    os.close(found)
    return found
