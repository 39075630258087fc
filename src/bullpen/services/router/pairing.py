"""Pairing of the two sides of a stream, and the end of streams whose lease is over.

Tells a router which leases have ended, so that it closes their streams.

Pairs two sides with tickets for the same stream, lease and epoch, once. Bounded, as a whole
and for each lease, and without I/O. A used ticket is remembered until it expires, so a
stolen copy of it opens nothing, also when the wall clock is set meanwhile.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

from bullpen.api.kinds.lease import Lease
from bullpen.core.leases import lifecycle
from bullpen.errors import Conflict, TooManyRequests, Unauthorized
from bullpen.identity.subjects import Role
from bullpen.identity.tokens import STREAM_LIFETIME, Ticket


class Fenced(Protocol):
    """The part of a router that fencing uses."""

    def fence(self, lease: str, epoch: int) -> object:
        """Close the lease's streams up to an epoch, and admit no more of them."""

    def admit_only(self, knows: Callable[[str], bool]) -> None:
        """Admit only streams of leases that ``knows`` by their uid.

        For the router of a process that issues the tokens and holds all open leases: a token of any
        other lease is from before a restart, and its lease has ended.
        """


def fencing(router: Fenced) -> Callable[[Lease | None, Lease | None], None]:
    """Close a lease's streams as soon as it ends, is deleted, or goes to another client."""

    def changed(old: Lease | None, new: Lease | None) -> None:
        lease, epoch = new or old, lifecycle.fenced(old, new)
        if lease is not None and epoch is not None:
            router.fence(lease.metadata.uid, epoch)

    return changed


WAITING_MAX = 20_000
USED_MAX = 200_000

LEASE_LEGS_MAX = 2_000
"""Legs of one lease, joined and waiting, so that no client exhausts the router."""

LEASE_WAITING_MAX = 200
LEASE_USED_MAX = 20_000
"""Used tickets of one lease that have not expired: eleven a second for half an hour."""

_WAITING, _USED = "waiting", "used"

L = TypeVar("L")


class Pairing(Generic[L]):
    """Legs waiting for their other side, and those that are joined, by lease."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Ticket, L]] = {}
        self._used: dict[tuple[str, Role], tuple[Ticket, timedelta]] = {}
        """Used tickets in the order of their use, and the steady time until they are kept."""

        self._by_lease: defaultdict[str, dict[L, int]] = defaultdict(dict)
        self._counts: Counter[tuple[str, str]] = Counter()
        """Counts by lease and by what is counted."""

        self._fences: dict[str, int] = {}
        self.knows: Callable[[str], bool] = lambda _: True
        """Whether a lease is open, by its uid, in a process that knows all open leases."""

    @property
    def legs(self) -> int:
        return sum(len(legs) for legs in self._by_lease.values())

    def streams(self) -> dict[str, int]:
        """How many streams each lease has, by its uid; one that waits for its other side counts."""
        return {lease: -(-len(legs) // 2) for lease, legs in self._by_lease.items() if legs}

    def arrive(self, ticket: Ticket, leg: L, *, now: datetime, steady: timedelta) -> L | None:
        """The other side if it is already waiting, else None: the leg waits.

        ``steady`` is ``now`` in steady time. Raises ``Unauthorized`` for a ticket that was used or
        whose lease has ended.
        """
        self._forget(now, steady)
        fenced = self._fences.get(ticket.lease, -1) >= ticket.epoch
        if fenced or not self.knows(ticket.lease):
            raise Unauthorized("the lease of this stream has ended")
        use = (ticket.stream, ticket.role)
        if use in self._used:
            raise Unauthorized("this stream token was already used")
        found = self._waiting.get(ticket.stream)
        self._check_room(ticket.lease, waits=found is None)
        if found is not None and not _belong(found[0], ticket):
            raise Conflict("the other side of this stream has another lease")
        self._used[use] = ticket, steady + STREAM_LIFETIME
        self._count(ticket.lease, _USED, 1)
        self._by_lease[ticket.lease][leg] = ticket.epoch
        if found is None:
            self._waiting[ticket.stream] = (ticket, leg)
            self._count(ticket.lease, _WAITING, 1)
            return None
        self._stop_waiting(ticket)
        return found[1]

    def _check_room(self, lease: str, *, waits: bool) -> None:
        """A leg that joins a waiting one frees a place, so only unpaired legs count as waiting."""
        if (waits and len(self._waiting) >= WAITING_MAX) or len(self._used) >= USED_MAX:
            raise TooManyRequests("too many streams are waiting for their other side")
        if (
            (waits and self._counts[lease, _WAITING] >= LEASE_WAITING_MAX)
            or len(self._by_lease.get(lease, ())) >= LEASE_LEGS_MAX
            or self._counts[lease, _USED] >= LEASE_USED_MAX
        ):
            raise TooManyRequests("this lease has too many streams; close some, or try again later")

    def _stop_waiting(self, ticket: Ticket) -> None:
        del self._waiting[ticket.stream]
        self._count(ticket.lease, _WAITING, -1)

    def _count(self, lease: str, what: str, step: int) -> None:
        self._counts[lease, what] += step
        if not self._counts[lease, what]:
            del self._counts[lease, what]

    def leave(self, ticket: Ticket, leg: L) -> None:
        """A leg ended, joined or not."""
        waiting = self._waiting.get(ticket.stream)
        if waiting is not None and waiting[1] is leg:
            self._stop_waiting(ticket)
        legs = self._by_lease[ticket.lease]
        legs.pop(leg, None)
        if not legs:
            del self._by_lease[ticket.lease]

    def fence(self, lease: str, epoch: int) -> tuple[L, ...]:
        """The lease has ended up to this epoch: admit none of its legs; returns those to close."""
        self._fences[lease] = max(epoch, self._fences.get(lease, -1))
        return tuple(leg for leg, held in self._by_lease.get(lease, {}).items() if held <= epoch)

    def _forget(self, now: datetime, steady: timedelta) -> None:
        """Drop used tickets that have expired by the wall clock and by steady time.

        A clock that is set ahead and back makes a ticket expire and be valid again; a clock that is
        set back keeps it valid for longer.
        """
        while self._used:
            use, (ticket, until) = next(iter(self._used.items()))
            if ticket.expires > now or until > steady:
                break
            del self._used[use]
            self._count(ticket.lease, _USED, -1)
        while len(self._fences) > USED_MAX:
            del self._fences[next(iter(self._fences))]


def _belong(one: Ticket, other: Ticket) -> bool:
    return one.role is not other.role and one.lease == other.lease and one.epoch == other.epoch
