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
import contextlib
import logging
import os
import resource
import socket
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bullpen.runtime.connections import Bounds

log = logging.getLogger("bullpen.grpc")

LOOK_SECONDS = 0.25
DESCRIPTORS = Path("/proc/self/fd")

_RECEIVED_OFFSET = 128
"""Offset of ``tcpi_bytes_received`` in Linux' ``struct tcp_info``."""

_INFO_BYTES = _RECEIVED_OFFSET + 8


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection of the port, as the kernel reports it."""

    descriptor: int
    address: str
    received: int
    """Bytes the peer has sent so far."""


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
    def __init__(self, port: int, bounds: Bounds) -> None:
        self.name = "controller"
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
        gone = surplus(_connections(self._port), self._bounds)
        for connection in gone:
            _shut_down(connection.descriptor, self._port)
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


def _connections(port: int) -> list[Connection]:
    found = (_connection(descriptor, port) for descriptor in _descriptors())
    return [connection for connection in found if connection is not None]


def _descriptors() -> Iterable[int]:
    """The open descriptors; if none is left to list them with, all possible ones."""
    try:
        return [int(name) for name in os.listdir(DESCRIPTORS)]
    except OSError:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return range(soft)


def _connection(descriptor: int, port: int) -> Connection | None:
    """The connection of a descriptor, if it is an accepted connection of the port."""
    with contextlib.suppress(OSError):
        borrowed = socket.socket(fileno=descriptor)
        try:
            if borrowed.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            if borrowed.getsockname()[1] != port:
                return None
            # A listening socket has no peer, and raises.
            address = str(borrowed.getpeername()[0])
            info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            (received,) = struct.unpack_from("Q", info, _RECEIVED_OFFSET)
            return Connection(descriptor, address, received)
        finally:
            # The descriptor belongs to gRPC and stays open.
            borrowed.detach()
    return None


def _shut_down(descriptor: int, port: int) -> None:
    """Shut the connection down; checked again first, because gRPC may have closed it."""
    if _connection(descriptor, port) is None:
        return
    with contextlib.suppress(OSError):
        borrowed = socket.socket(fileno=descriptor)
        try:
            borrowed.shutdown(socket.SHUT_RDWR)
        finally:
            borrowed.detach()
