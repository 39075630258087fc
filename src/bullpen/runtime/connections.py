"""Connections of one port: their maximum number, eviction of idle ones, and accepting.

A connection is idle while no request is being served on it: before and during its TLS
handshake, before its first request is complete, and between requests. When the port is
full, idle connections are closed in favour of new ones. So a peer that only holds
connections open loses them to peers that send requests, and cannot block others, not even
from the same address. A handshake has a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

log = logging.getLogger("bullpen.connections")

BACKLOG = 2048
HANDSHAKE_SECONDS_MAX = 10.0
PAUSE_SECONDS = 0.05
"""Pause after a failed accept."""

TLS_HANDSHAKE = b"\x16"
"""The first byte of every TLS connection."""

PLAIN_BYTES_MAX = 64 * 1024
"""Input of a peer without TLS that is read before it is answered."""

PLAIN_ANSWER = (
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    b'{"kind":"Status","apiVersion":"v1","status":"Failure","code":400,"reason":"BadRequest",'
    b'"message":"this port needs TLS: use https:// instead of http://, and with kubectl the'
    b' kubeconfig of the service (export KUBECONFIG=FILE)"}\n'
)
"""As Kubernetes answers, so that kubectl shows the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How many connections a port may have."""

    total: int = 20_000
    per_address: int = 20_000

    def __post_init__(self) -> None:
        assert self.total > 0
        assert self.per_address > 0


class PortConnections:
    """The connections of a port. Does no I/O itself: it tells a connection to leave."""

    def __init__(self, name: str, bounds: Bounds | None = None) -> None:
        self.name = name
        self._bounds = bounds or Bounds()
        self._idle: dict[AcceptedConnection, None] = {}
        """Longest idle first."""

        self._busy: set[AcceptedConnection] = set()
        self._addresses: Counter[str] = Counter()
        self.displaced = 0
        """Idle connections that were closed for newer ones."""

        self.refused = 0
        """Connections that were closed at once because all others were busy."""

    @property
    def open(self) -> int:
        """The number of current connections."""
        return len(self._idle) + len(self._busy)

    def admit(self, accepted: AcceptedConnection) -> bool:
        """Admit a connection, in place of an idle one if necessary; False if there is no room."""
        if self._addresses[accepted.address] >= self._bounds.per_address and not self._make_room(
            accepted.address
        ):
            return self._refuse()
        if self.open >= self._bounds.total and not self._make_room(None):
            return self._refuse()
        self._idle[accepted] = None
        self._addresses[accepted.address] += 1
        return True

    def busy(self, accepted: AcceptedConnection) -> None:
        """A request is being served on the connection, so it keeps its place until idle again."""
        if accepted in self._idle:
            del self._idle[accepted]
            self._busy.add(accepted)

    def idle(self, accepted: AcceptedConnection) -> None:
        if accepted in self._busy:
            self._busy.discard(accepted)
            self._idle[accepted] = None

    def left(self, accepted: AcceptedConnection) -> None:
        if accepted not in self._idle and accepted not in self._busy:
            return
        self._idle.pop(accepted, None)
        self._busy.discard(accepted)
        self._addresses[accepted.address] -= 1
        if not self._addresses[accepted.address]:
            del self._addresses[accepted.address]

    def _make_room(self, address: str | None) -> bool:
        """Close the connection that has been idle longest, of one address or of all."""
        oldest = next((g for g in self._idle if address is None or g.address == address), None)
        if oldest is None:
            return False
        self.left(oldest)
        oldest.leave()
        self.displaced += 1
        self.tell("idle connections give way to newer ones", self.displaced)
        return True

    def _refuse(self) -> bool:
        self.refused += 1
        self.tell("connections are refused: all that there may be are busy", self.refused)
        return False

    def tell(self, text: str, count: int) -> None:
        """Log the first occurrence and then ever more rarely; the metrics have the numbers."""
        if count & (count - 1) == 0:
            log.warning(text, extra={"key": self.name, "count": count, "open": self.open})


class AcceptedConnection:
    """A connection, from the moment it is accepted."""

    def __init__(
        self, connections: PortConnections, connection: socket.socket, address: str
    ) -> None:
        self.address = address
        self._connections = connections
        self._socket = connection
        self._entering: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    def busy(self) -> None:
        self._connections.busy(self)

    def idle(self) -> None:
        self._connections.idle(self)

    def left(self) -> None:
        self._connections.left(self)

    def leave(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        elif self._entering is not None:
            self._entering.cancel()

    def enter(
        self, tasks: asyncio.TaskGroup, make: Make, tls: ssl.SSLContext | None
    ) -> asyncio.Task[None]:
        """Do the TLS handshake, then start the protocol."""
        self._entering = tasks.create_task(self._enter(make, tls))
        return self._entering

    async def _enter(self, make: Make, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        timeout = HANDSHAKE_SECONDS_MAX if tls is not None else None
        try:
            if tls is not None and not await self._speaks_tls():
                self._gone()
                return
            self._transport, _ = await loop.connect_accepted_socket(
                lambda: make(self), self._socket, ssl=tls, ssl_handshake_timeout=timeout
            )
        except OSError:
            # A handshake that fails or times out is the peer's problem and is not logged.
            self._gone()
        except asyncio.CancelledError:
            self._gone()
            raise

    async def _speaks_tls(self) -> bool:
        """Whether the peer begins a TLS handshake. A peer that sends plain HTTP gets an answer.

        Raises ``TimeoutError``, which is an ``OSError``, if it sends nothing.
        """
        loop = asyncio.get_running_loop()
        readable = loop.create_future()
        self._socket.setblocking(False)
        loop.add_reader(self._socket, _wake, readable)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                await readable
        finally:
            loop.remove_reader(self._socket)
        first = self._socket.recv(1, socket.MSG_PEEK)
        if first.isalpha():
            # Unread input would make the close discard the answer.
            self._socket.recv(PLAIN_BYTES_MAX)
            self._socket.send(PLAIN_ANSWER)
        return first == TLS_HANDSHAKE

    def _gone(self) -> None:
        self._socket.close()
        self.left()


def _wake(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


Make = Callable[[AcceptedConnection], asyncio.Protocol]
"""Creates the protocol of a connection. It must call ``left`` when the connection is lost."""


@contextlib.asynccontextmanager
async def accepting(
    listener: socket.socket, make: Make, connections: PortConnections, *, tls: ssl.SSLContext | None
) -> AsyncIterator[None]:
    """Accept connections while the context is open; existing connections continue after it."""
    listener.setblocking(False)
    listener.listen(BACKLOG)
    entering: set[asyncio.Task[None]] = set()
    async with asyncio.TaskGroup() as tasks:
        accept = tasks.create_task(_accept(listener, make, connections, tls, tasks, entering))
        try:
            yield
        finally:
            for task in (accept, *entering):
                task.cancel()
            listener.close()


async def _accept(
    listener: socket.socket,
    make: Make,
    connections: PortConnections,
    tls: ssl.SSLContext | None,
    tasks: asyncio.TaskGroup,
    entering: set[asyncio.Task[None]],
) -> None:
    loop = asyncio.get_running_loop()
    failed = 0
    while True:
        try:
            connection, address = await loop.sock_accept(listener)
        except OSError as error:
            # The peer may have gone already, or no file descriptors are left.
            failed += 1
            connections.tell(f"a connection cannot be accepted: {error.strerror}", failed)
            await asyncio.sleep(PAUSE_SECONDS)
            continue
        accepted = AcceptedConnection(connections, connection, str(address[0]))
        if not connections.admit(accepted):
            connection.close()
            continue
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = accepted.enter(tasks, make, tls)
        entering.add(task)
        task.add_done_callback(entering.discard)
