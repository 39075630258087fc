"""Ended leases of one namespace, kept readable until their retention ends.

There are far more ended leases than open ones, so no pass may scan them all: a heap gives
the lease that is due next.
"""

from __future__ import annotations

import heapq
from datetime import datetime, timedelta

from bullpen.api.lease import Lease
from bullpen.core.leases.lifecycle import ENDED_LABEL
from bullpen.kit import times

DUE_AT_ONCE_MAX = 500
"""Leases deleted in one pass; the resulting delete events start the next pass."""


class EndedLeases:
    def __init__(self, retention: timedelta | None) -> None:
        """``retention`` is None in processes that do not delete leases; they keep nothing here."""
        self._retention = retention
        self._heap: list[tuple[datetime, str]] = []
        """Due time and uid of each lease; may include leases that have been deleted."""

        self._leases: dict[str, Lease] = {}
        self._unlabelled: dict[str, Lease] = {}

    def put(self, lease: Lease) -> None:
        """Add or update an ended lease."""
        if self._retention is None:
            return
        uid = lease.metadata.uid
        if uid not in self._leases:
            heapq.heappush(self._heap, (_kept_until(lease, self._retention), uid))
        self._leases[uid] = lease
        if ENDED_LABEL in lease.metadata.labels:
            self._unlabelled.pop(uid, None)
        else:
            self._unlabelled[uid] = lease

    def remove(self, lease: Lease) -> None:
        """Remove a deleted lease; unknown leases are ignored."""
        self._leases.pop(lease.metadata.uid, None)
        self._unlabelled.pop(lease.metadata.uid, None)

    def unlabelled(self) -> tuple[Lease, ...]:
        """Leases whose end was written but not labelled: a crash came between the two writes."""
        return tuple(self._unlabelled.values())

    def due(self, now: datetime) -> tuple[Lease, ...]:
        """Leases whose retention is over, oldest first. They stay in the index until deleted."""
        found: list[tuple[datetime, str]] = []
        while len(found) < DUE_AT_ONCE_MAX and self._first(now) is not None:
            found.append(heapq.heappop(self._heap))
        for entry in found:
            heapq.heappush(self._heap, entry)
        return tuple(self._leases[uid] for _, uid in found)

    def next_due(self) -> datetime | None:
        """When the next lease is due."""
        return self._first(None)

    def _first(self, now: datetime | None) -> datetime | None:
        """When the first lease is due, if that is not after ``now``."""
        heap = self._heap
        while heap and heap[0][1] not in self._leases:
            heapq.heappop(heap)
        if not heap or (now is not None and heap[0][0] > now):
            return None
        return heap[0][0]


def _kept_until(lease: Lease, retention: timedelta) -> datetime:
    assert lease.metadata.creation_timestamp is not None
    return times.shifted(lease.status.end_time or lease.metadata.creation_timestamp, retention)
