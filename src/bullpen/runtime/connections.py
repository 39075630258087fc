"""Connections of one port: how many there may be, which one gives way, and how they are accepted.

A connection is idle while nothing is being done for it: before and during its TLS handshake,
before its first request is complete, and between requests. Idle ones give way when there is no
room: whoever only holds connections open is pushed out by whoever uses one, and cannot keep others
from being served, not even from the same address. A handshake has a deadline.
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
"""After a connection could not be accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How many connections a port may have."""

    total: int = 20_000
    per_address: int = 20_000

    def __post_init__(self) -> None:
        assert self.total > 0
        assert self.per_address > 0


class Door:
    """Who is connected to a port. Does no I/O: a guest that must go is told to."""

    def __init__(self, name: str, bounds: Bounds | None = None) -> None:
        self.name = name
        self._bounds = bounds or Bounds()
        self._idle: dict[Guest, None] = {}
        """Longest idle first."""

        self._busy: set[Guest] = set()
        self._addresses: Counter[str] = Counter()
        self.displaced = 0
        """Idle connections that were closed for newer ones."""

        self.refused = 0
        """Connections that were closed at once because all others were busy."""

    @property
    def open(self) -> int:
        """Connections there are now."""
        return len(self._idle) + len(self._busy)

    def admit(self, guest: Guest) -> bool:
        """Let a guest in, in the place of an idle one if need be; False if there is no room."""
        if self._addresses[guest.address] >= self._bounds.per_address and not self._make_room(
            guest.address
        ):
            return self._refuse()
        if self.open >= self._bounds.total and not self._make_room(None):
            return self._refuse()
        self._idle[guest] = None
        self._addresses[guest.address] += 1
        return True

    def busy(self, guest: Guest) -> None:
        """Something is being done for the guest; it keeps its place until it is idle again."""
        if guest in self._idle:
            del self._idle[guest]
            self._busy.add(guest)

    def idle(self, guest: Guest) -> None:
        if guest in self._busy:
            self._busy.discard(guest)
            self._idle[guest] = None

    def left(self, guest: Guest) -> None:
        if guest not in self._idle and guest not in self._busy:
            return
        self._idle.pop(guest, None)
        self._busy.discard(guest)
        self._addresses[guest.address] -= 1
        if not self._addresses[guest.address]:
            del self._addresses[guest.address]

    def _make_room(self, address: str | None) -> bool:
        """Send away whoever has been idle for longest, of an address or of all."""
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
        """Say it at the first time and then ever more seldom; the metrics have the numbers."""
        if count & (count - 1) == 0:
            log.warning(text, extra={"key": self.name, "count": count, "open": self.open})


class Guest:
    """A connection, from the moment it is accepted."""

    def __init__(self, door: Door, connection: socket.socket, address: str) -> None:
        self.address = address
        self._door = door
        self._socket = connection
        self._entering: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    def busy(self) -> None:
        self._door.busy(self)

    def idle(self) -> None:
        self._door.idle(self)

    def left(self) -> None:
        self._door.left(self)

    def leave(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        elif self._entering is not None:
            self._entering.cancel()

    def enter(
        self, tasks: asyncio.TaskGroup, make: Make, tls: ssl.SSLContext | None
    ) -> asyncio.Task[None]:
        """Shake hands, then let the protocol talk."""
        self._entering = tasks.create_task(self._enter(make, tls))
        return self._entering

    async def _enter(self, make: Make, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        timeout = HANDSHAKE_SECONDS_MAX if tls is not None else None
        try:
            self._transport, _ = await loop.connect_accepted_socket(
                lambda: make(self), self._socket, ssl=tls, ssl_handshake_timeout=timeout
            )
        except OSError:
            # A handshake that fails or takes too long is the caller's affair.
            self._gone()
        except asyncio.CancelledError:
            self._gone()
            raise

    def _gone(self) -> None:
        self._socket.close()
        self.left()


Make = Callable[[Guest], asyncio.Protocol]
"""Makes the protocol of a guest. It is to call ``left`` when the connection is lost."""


@contextlib.asynccontextmanager
async def accepting(
    listener: socket.socket, make: Make, door: Door, *, tls: ssl.SSLContext | None
) -> AsyncIterator[None]:
    """Accept connections while the context is open; those there are by then go on."""
    listener.setblocking(False)
    listener.listen(BACKLOG)
    entering: set[asyncio.Task[None]] = set()
    async with asyncio.TaskGroup() as tasks:
        accept = tasks.create_task(_accept(listener, make, door, tls, tasks, entering))
        try:
            yield
        finally:
            for task in (accept, *entering):
                task.cancel()
            listener.close()


async def _accept(
    listener: socket.socket,
    make: Make,
    door: Door,
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
            # The other side may have gone already; or there are no descriptors left.
            failed += 1
            door.tell(f"a connection cannot be accepted: {error.strerror}", failed)
            await asyncio.sleep(PAUSE_SECONDS)
            continue
        guest = Guest(door, connection, str(address[0]))
        if not door.admit(guest):
            connection.close()
            continue
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = guest.enter(tasks, make, tls)
        entering.add(task)
        task.add_done_callback(entering.discard)
