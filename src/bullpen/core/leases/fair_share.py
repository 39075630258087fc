"""Fair share: what clients have used of late decides between requests of about the same age.

Use is counted in hours of exporters, weighted by the cost of their DeviceClass, and loses half
its weight in ``HALF_LIFE``. It delays the requests of a client in the queue by its handicap, as
if they had been made so much later. The handicap is bounded, so no request waits behind one
that is made more than ``HANDICAP_MAX`` later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from bullpen.kit import times

HALF_LIFE = timedelta(days=1)
"""After so long, past use counts half."""

HANDICAP_MAX = timedelta(hours=1)
"""How much later than it was made a request may count as made."""

HANDICAP_HALF = 8.0
"""The weighted hours of use that give half of ``HANDICAP_MAX``."""

HANDICAP_GRAIN = timedelta(minutes=1)
"""Less than this is no handicap: a few minutes of use do not change the order of requests."""

NO_HANDICAP = timedelta(0)

_RATE = math.log(2) / (HALF_LIFE / timedelta(hours=1))
"""The part of past use that is lost in an hour, as an exponential rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """One exporter that a client has, or had."""

    begin: datetime
    end: datetime | None = None
    """None if it still has it."""

    cost: float = 1.0
    """What an hour of it counts for."""


def debt(spells: Iterable[Spell], *, now: datetime) -> float:
    """Hours of exporters, weighted by cost and by how long ago they were."""
    return sum(_weight(spell, now) for spell in spells)


def handicap(debt: float) -> timedelta:
    """By how much the requests of a client with so much recent use are delayed in the queue."""
    if debt <= 0:
        return NO_HANDICAP
    exact = HANDICAP_MAX * (debt / (debt + HANDICAP_HALF))
    return exact // HANDICAP_GRAIN * HANDICAP_GRAIN


def delayed(since: datetime, by: timedelta) -> datetime:
    """When a request counts as made."""
    return times.shifted(since, by) if by else since


def _weight(spell: Spell, now: datetime) -> float:
    newest = _hours(now - min(spell.end or now, now))
    oldest = _hours(now - min(spell.begin, now))
    return spell.cost * (math.exp(-_RATE * newest) - math.exp(-_RATE * oldest)) / _RATE


def _hours(span: timedelta) -> float:
    return span / timedelta(hours=1)


class FairShare:
    """The recent use of the clients of a namespace."""

    def __init__(self) -> None:
        self._ended: dict[str, tuple[float, datetime]] = {}
        """By client, the weight of what it no longer has, and when that was the weight."""

        self._holding: dict[str, dict[str, Spell]] = {}
        """By client and lease, what it has."""

    def hold(self, client: str, lease: str, spell: Spell) -> None:
        """A lease of the client has an exporter."""
        self._holding.setdefault(client, {})[lease] = spell

    def let_go(self, client: str, lease: str, *, now: datetime) -> None:
        """The lease has ended, or is another client's now."""
        held = self._holding.get(client, {})
        spell = held.pop(lease, None)
        if spell is None:
            return
        if not held:
            del self._holding[client]
        self.used(client, Spell(begin=spell.begin, end=now, cost=spell.cost), now=now)

    def used(self, client: str, spell: Spell, *, now: datetime) -> None:
        """The client had an exporter, perhaps before this process started."""
        total = self._past(client, now) + _weight(spell, now)
        self._ended[client] = (total, now)

    def forget(self, client: str) -> None:
        """The client was removed."""
        self._ended.pop(client, None)

    def handicaps(self, clients: Iterable[str], *, now: datetime) -> dict[str, timedelta]:
        """For each of the clients with recent use, by how much its requests are delayed."""
        debts = ((client, self.debt(client, now=now)) for client in clients)
        return {client: handicap(owed) for client, owed in debts if owed}

    def debt(self, client: str, *, now: datetime) -> float:
        return self._past(client, now) + debt(self._holding.get(client, {}).values(), now=now)

    def _past(self, client: str, now: datetime) -> float:
        weight, at = self._ended.get(client, (0.0, now))
        return weight * math.exp(-_RATE * _hours(max(now - at, timedelta(0))))
