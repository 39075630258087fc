"""Who meets whom: two sides with tickets for the same stream, lease and epoch, once.

Bounded and without I/O. A ticket that was used is remembered until it runs out, so a
stolen copy of it opens nothing.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import Generic, TypeVar

from bullpen.errors import Conflict, TooManyRequests, Unauthorized
from bullpen.identity.subjects import Role
from bullpen.identity.tokens import Ticket

WAITING_MAX = 20_000
USED_MAX = 200_000

L = TypeVar("L")


class Pairing(Generic[L]):
    """Legs waiting for their other side, and those that are joined, by lease."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Ticket, L]] = {}
        self._used: dict[tuple[str, Role], datetime] = {}
        self._by_lease: defaultdict[str, dict[L, int]] = defaultdict(dict)
        self._fences: dict[str, int] = {}

    @property
    def legs(self) -> int:
        return sum(len(legs) for legs in self._by_lease.values())

    def arrive(self, ticket: Ticket, leg: L, *, now: datetime) -> L | None:
        """The other side if it is already there, else None: the leg waits.

        Raises ``Unauthorized`` for a ticket that was used or whose lease is over.
        """
        self._forget(now)
        if self._fences.get(ticket.lease, -1) >= ticket.epoch:
            raise Unauthorized("the lease of this stream is over")
        use = (ticket.stream, ticket.role)
        if use in self._used:
            raise Unauthorized("this stream token was already used")
        if len(self._waiting) >= WAITING_MAX or len(self._used) >= USED_MAX:
            raise TooManyRequests("too many streams are waiting for their other side")
        found = self._waiting.get(ticket.stream)
        if found is not None and not _belong(found[0], ticket):
            raise Conflict("the other side of this stream has another lease")
        self._used[use] = ticket.expires
        self._by_lease[ticket.lease][leg] = ticket.epoch
        if found is None:
            self._waiting[ticket.stream] = (ticket, leg)
            return None
        del self._waiting[ticket.stream]
        return found[1]

    def leave(self, ticket: Ticket, leg: L) -> None:
        """A leg ended, joined or not."""
        waiting = self._waiting.get(ticket.stream)
        if waiting is not None and waiting[1] is leg:
            del self._waiting[ticket.stream]
        legs = self._by_lease[ticket.lease]
        legs.pop(leg, None)
        if not legs:
            del self._by_lease[ticket.lease]

    def fence(self, lease: str, epoch: int) -> tuple[L, ...]:
        """The lease is over up to this epoch: nothing of it may join, and these must go."""
        self._fences[lease] = max(epoch, self._fences.get(lease, -1))
        return tuple(leg for leg, held in self._by_lease.get(lease, {}).items() if held <= epoch)

    def _forget(self, now: datetime) -> None:
        """Drop used tickets that have run out; they were added in order of time."""
        while self._used:
            use, expires = next(iter(self._used.items()))
            if expires > now:
                break
            del self._used[use]
        while len(self._fences) > USED_MAX:
            del self._fences[next(iter(self._fences))]


def _belong(one: Ticket, other: Ticket) -> bool:
    return one.role is not other.role and one.lease == other.lease and one.epoch == other.epoch
