"""A router: listens, admits callers by ticket, joins them, and cuts off ended leases."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from bullpen.core.leases.sessions import Session
from bullpen.errors import LabError
from bullpen.identity.subjects import Role
from bullpen.identity.tokens import Ticket, Tickets
from bullpen.kit.clock import Clock
from bullpen.runtime import silence
from bullpen.runtime.connections import AcceptedConnection, PortConnections, accepting
from bullpen.services.router.connection import Connection, Limits
from bullpen.services.router.leg import Leg
from bullpen.services.router.pairing import Pairing

log = logging.getLogger("bullpen.router")

UNAUTHENTICATED, RESOURCE_EXHAUSTED = 16, 8
DRAIN_SECONDS = 0.2


class Router:
    def __init__(
        self,
        tickets: Tickets,
        *,
        clock: Clock,
        limits: Limits | None = None,
        on_session: Callable[[Session], None] = lambda session: None,
        on_first_byte: Callable[[Session], None] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self._tickets = tickets
        self._clock = clock
        self.on_session = on_session
        """Called when two sides are joined and again when one leaves; must return at once."""

        self.on_first_byte = on_first_byte
        """Called when the first bytes from an exporter were passed on."""

        self._joined: set[tuple[Leg, Leg]] = set()
        """Client and exporter of each stream that two sides share."""

        self._passed_before = (0, 0)
        """What streams that are over have passed, from clients and from exporters."""

        self._pairing: Pairing[Leg] = Pairing()
        self._connections: set[Connection] = set()

    @property
    def load(self) -> int:
        """Current legs, including waiting ones."""
        return self._pairing.legs

    @property
    def joined(self) -> int:
        """Streams that two sides share."""
        return len(self._joined)

    def passed(self) -> tuple[int, int]:
        """Payload bytes passed so far, from clients and from exporters."""
        clients, exporters = self._passed_before
        return (
            clients + sum(client.passed for client, _ in self._joined),
            exporters + sum(exporter.passed for _, exporter in self._joined),
        )

    def streams(self) -> dict[str, int]:
        """How many streams each lease has, by its uid."""
        return self._pairing.streams()

    @contextlib.asynccontextmanager
    async def serving(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext | None,
        *,
        connections: PortConnections | None = None,
    ) -> AsyncIterator[None]:
        """Route while the context is open; then notify callers and stop."""
        loop = asyncio.get_running_loop()
        silence.probe_accepted(listener)

        def connect(accepted: AcceptedConnection) -> Connection:
            return Connection(self, loop.time, accepted)

        async with asyncio.TaskGroup() as tasks:
            sweeping = tasks.create_task(self._sweep())
            try:
                async with accepting(
                    listener, connect, connections or PortConnections("router"), tls=tls
                ):
                    yield
            finally:
                sweeping.cancel()
                for connection in tuple(self._connections):
                    connection.drain()
                await asyncio.sleep(DRAIN_SECONDS)
                for connection in tuple(self._connections):
                    connection.abort(0, "the router is stopping")

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.limits.sweep_seconds)
            for connection in tuple(self._connections):
                connection.sweep(loop.time())

    def fence(self, lease: str, epoch: int) -> int:
        """The lease has ended: close its streams, admit no more. Returns how many were closed."""
        legs = self._pairing.fence(lease, epoch)
        for leg in legs:
            leg.wind_down()
        if legs:
            log.info("streams cut", extra={"key": lease, "legs": len(legs)})
        return len(legs)

    def admit_only(self, knows: Callable[[str], bool]) -> None:
        self._pairing.knows = knows

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def arrived(self, leg: Leg, authorization: str) -> None:
        now = self._clock.now()
        scheme, _, token = authorization.partition(" ")
        try:
            ticket = self._tickets.verify(token if scheme.lower() == "bearer" else "", now=now)
            other = self._pairing.arrive(ticket, leg, now=now, steady=self._clock.steady())
        except LabError as error:
            busy = error.reason == "TooManyRequests"
            leg.finish(RESOURCE_EXHAUSTED if busy else UNAUTHENTICATED, error.message)
            return
        leg.on_over = lambda: self._pairing.leave(ticket, leg)
        leg.accept()
        if other is not None:
            self._join(ticket, leg, other)

    def _join(self, ticket: Ticket, leg: Leg, other: Leg) -> None:
        client, exporter = (leg, other) if ticket.role is Role.CLIENT else (other, leg)
        session = Session(stream=ticket.stream, lease=ticket.lease, started=self._clock.now())
        self.on_session(session)
        first_byte = self.on_first_byte
        if first_byte is not None:
            exporter.on_first = lambda: first_byte(session)
        left, pair = leg.on_over, (client, exporter)
        self._joined.add(pair)

        def over() -> None:
            if left is not None:
                left()
            if pair in self._joined:
                self._joined.discard(pair)
                clients, exporters = self._passed_before
                self._passed_before = clients + client.passed, exporters + exporter.passed
            self.on_session(
                replace(
                    session,
                    ended=self._clock.now(),
                    from_client=client.passed,
                    from_exporter=exporter.passed,
                )
            )

        leg.on_over = over
        leg.join(other)


def tls_context(chain: str, key: str) -> ssl.SSLContext:
    """TLS as gRPC clients expect it: HTTP/2 by ALPN; a handshake without ALPN is allowed."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(chain, key)
    context.set_alpn_protocols(["h2"])
    return context
