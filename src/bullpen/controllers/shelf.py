"""Ended leases, kept to be read until their time is up; which one is next is known at once.

There are far more of them than of open ones, so that no pass may walk through them all.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from datetime import datetime, timedelta

from bullpen.api.lease import Lease
from bullpen.core.leasing import ENDED_LABEL
from bullpen.kit import times

DUE_AT_ONCE_MAX = 500
"""Leases thrown away in one pass; their going starts the next pass."""


class Shelf:
    def __init__(self, retention: timedelta) -> None:
        self._retention = retention
        self._heaps: dict[str, list[tuple[datetime, str]]] = defaultdict(list)
        """Per namespace, when each lease is due, and its uid; also of leases already gone."""

        self._leases: dict[str, Lease] = {}
        self._unlabelled: dict[str, dict[str, Lease]] = defaultdict(dict)

    def put(self, lease: Lease) -> None:
        """An ended lease, new here or changed."""
        uid, namespace = lease.metadata.uid, lease.metadata.namespace
        if uid not in self._leases:
            heapq.heappush(self._heaps[namespace], (self._kept_until(lease), uid))
        self._leases[uid] = lease
        if ENDED_LABEL in lease.metadata.labels:
            self._unlabelled[namespace].pop(uid, None)
        else:
            self._unlabelled[namespace][uid] = lease

    def remove(self, lease: Lease) -> None:
        """A lease that is gone, or one that never was here."""
        self._leases.pop(lease.metadata.uid, None)
        self._unlabelled[lease.metadata.namespace].pop(lease.metadata.uid, None)

    def unlabelled(self, namespace: str) -> tuple[Lease, ...]:
        """Leases whose end was written but not marked: something came in between."""
        return tuple(self._unlabelled[namespace].values())

    def due(self, namespace: str, now: datetime) -> tuple[Lease, ...]:
        """Leases nobody needs any more, oldest first. They stay here until they are gone."""
        found: list[tuple[datetime, str]] = []
        while len(found) < DUE_AT_ONCE_MAX and self._first(namespace, now) is not None:
            found.append(heapq.heappop(self._heaps[namespace]))
        for entry in found:
            heapq.heappush(self._heaps[namespace], entry)
        return tuple(self._leases[uid] for _, uid in found)

    def next_due(self, namespace: str) -> datetime | None:
        """When the next lease is due."""
        return self._first(namespace, None)

    def _first(self, namespace: str, now: datetime | None) -> datetime | None:
        """When the first lease is due, if that is not after ``now``."""
        heap = self._heaps[namespace]
        while heap and heap[0][1] not in self._leases:
            heapq.heappop(heap)
        if not heap or (now is not None and heap[0][0] > now):
            return None
        return heap[0][0]

    def _kept_until(self, lease: Lease) -> datetime:
        assert lease.metadata.creation_timestamp is not None
        ended = lease.status.end_time or lease.metadata.creation_timestamp
        return times.shifted(ended, self._retention)
