"""Notices soon when the machine of an exporter cannot be reached any more.

A machine that loses its power or network does not close its connections. ``runtime.silence``
says how long it has been silent; this module looks at the connections with a stream that
asked for it, and shuts down those of unreachable machines. gRPC's own keepalive finds, much
later, programs that hang on a machine that is reachable: see ``server.OPTIONS``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from bullpen.runtime import silence
from bullpen.services.grpc import sockets
from bullpen.services.grpc.sockets import Endpoint
from bullpen.services.peers import Peer

log = logging.getLogger("bullpen.grpc")

SEARCHES_MAX = 3
"""How often the socket of a connection is searched; an unknown one is left to gRPC's keepalive."""

BATCH = 500
"""Connections looked at without a pause: about two milliseconds."""


@dataclass(slots=True)
class _Watched:
    """A connection with streams that are to end when its peer is unreachable."""

    peer: Peer = field(default_factory=Peer)
    streams: int = 0
    descriptor: int | None = None
    searches: int = 0


class PeerWatch:
    def __init__(self, port: int) -> None:
        """Binds nothing: ``port`` is already listened on, and accepts nothing yet."""
        self._port = port
        self._watched: dict[Endpoint, _Watched] = {}
        for descriptor in sockets.listeners(port):
            with sockets.borrowed(descriptor) as listener:
                silence.probe_accepted(listener)

    @contextlib.contextmanager
    def watching(self, peer: str) -> Iterator[Peer]:
        """The peer of a stream, watched while the stream is open; named as gRPC names it."""
        endpoint = sockets.parse_peer(peer)
        watched = self._watched.setdefault(endpoint, _Watched())
        watched.streams += 1
        try:
            yield watched.peer
        finally:
            watched.streams -= 1
            # The next connection from the same port of the same machine has an entry of its own.
            if not watched.streams and self._watched.get(endpoint) is watched:
                del self._watched[endpoint]

    async def run(self) -> None:
        """Look periodically until cancelled."""
        while True:
            await asyncio.sleep(silence.LOOK_SECONDS)
            self._search()
            for number, (endpoint, watched) in enumerate(tuple(self._watched.items()), 1):
                self._look(endpoint, watched)
                if number % BATCH == 0:
                    await asyncio.sleep(0)

    def _search(self) -> None:
        """Find the sockets of connections that are watched since the last look."""
        unknown = {
            endpoint: watched
            for endpoint, watched in self._watched.items()
            if watched.descriptor is None and watched.searches < SEARCHES_MAX
        }
        if not unknown:
            return
        # Other exporters may be many, and reconnect rarely. A descriptor whose connection has just
        # been replaced is found by the next search.
        known = {w.descriptor for w in self._watched.values() if w.descriptor is not None}
        for found in sockets.connections(self._port, besides=known):
            if found.endpoint in unknown:
                unknown[found.endpoint].descriptor = found.descriptor
        for watched in unknown.values():
            watched.searches += 1

    def _look(self, endpoint: Endpoint, watched: _Watched) -> None:
        if watched.descriptor is None or watched.peer.unreachable:
            return
        try:
            if not sockets.unreachable(watched.descriptor):
                return
        except OSError:
            # gRPC has closed it, and is about to end its streams.
            return
        current = sockets.connection(watched.descriptor, self._port)
        if current is None or current.endpoint != endpoint:
            return
        watched.peer.unreachable = True
        # A stream that begins from now on belongs to another connection.
        self._watched.pop(endpoint, None)
        sockets.shut_down(watched.descriptor, self._port)
        log.warning("connection closed: its peer is unreachable", extra={"key": endpoint[0]})
