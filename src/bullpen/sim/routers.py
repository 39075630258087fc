"""A router without payload: the real pairing decides on real tickets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bullpen.core.leases.sessions import Session
from bullpen.errors import Unreachable
from bullpen.identity.tokens import Ticket, Tickets
from bullpen.kit.clock import Clock
from bullpen.services.router.pairing import Pairing


@dataclass(slots=True, eq=False)
class Leg:
    """One side of a stream."""

    ticket: Ticket
    closed: Callable[[], None]
    peer: Leg | None = None
    session: Session | None = None
    """Set on the side that came second, which reports its end."""


class PlayedRouter:
    def __init__(self, endpoint: str, tickets: Tickets, clock: Clock) -> None:
        self.endpoint = endpoint
        self.on_session: Callable[[Session], None] = lambda _: None
        self.joined: Callable[[Ticket], None] = lambda _: None
        self._tickets = tickets
        self._clock = clock
        self._pairing: Pairing[Leg] = Pairing()
        self._legs: dict[Leg, None] = {}
        self._open = False

    def open(self) -> None:
        """Admit sides from now on."""
        self._open = True

    def arrive(self, token: str, closed: Callable[[], None]) -> Leg:
        """A side arrives with its token; raises ``Unauthorized`` or a subclass."""
        if not self._open:
            raise Unreachable("connection refused")
        now = self._clock.now()
        ticket = self._tickets.verify(token, now=now)
        leg = Leg(ticket, closed)
        peer = self._pairing.arrive(ticket, leg, now=now, steady=self._clock.steady())
        self._legs[leg] = None
        if peer is not None:
            leg.peer, peer.peer = peer, leg
            leg.session = Session(stream=ticket.stream, lease=ticket.lease, started=now)
            self.on_session(leg.session)
            self.joined(ticket)
        return leg

    def leave(self, leg: Leg) -> None:
        if leg not in self._legs:
            return
        del self._legs[leg]
        self._pairing.leave(leg.ticket, leg)
        peer, leg.peer = leg.peer, None
        leg.closed()
        if leg.session is not None and self._open:
            now = self._clock.now()
            self.on_session(replace(leg.session, ended=now, from_client=1_000, from_exporter=1_000))
        if peer is not None:
            self.leave(peer)

    def admit_only(self, knows: Callable[[str], bool]) -> None:
        self._pairing.knows = knows

    def fence(self, lease: str, epoch: int) -> None:
        for leg in self._pairing.fence(lease, epoch):
            self.leave(leg)

    def holds(self, leg: Leg) -> bool:
        """Whether a side is still connected."""
        return leg in self._legs

    @property
    def load(self) -> int:
        """The number of its legs."""
        return len(self._legs)

    def streams(self) -> list[Ticket]:
        """The streams that are joined now."""
        return [leg.ticket for leg in self._legs if leg.peer is not None]

    def close(self) -> None:
        self._open = False
        for leg in tuple(self._legs):
            self.leave(leg)
