"""The work queue: which keys need a pass, now or later. Takes ``now``, never sleeps.

A key is handed to one worker at a time; a key added meanwhile is handed out again
afterwards. Failed keys come back after a growing, bounded delay.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from datetime import datetime
from typing import Generic, TypeVar

from bullpen.runtime.retry import Retry

Q = TypeVar("Q", bound=Hashable)


class WorkQueue(Generic[Q]):
    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._waiting: dict[Q, None] = {}
        self._working: set[Q] = set()
        self._again: set[Q] = set()
        self._later: list[tuple[datetime, int, Q]] = []
        self._wake: dict[Q, datetime] = {}
        self._failures: dict[Q, int] = {}
        self._sequence = 0

    def add(self, key: Q) -> None:
        """The key needs a pass."""
        if key in self._working:
            self._again.add(key)
        else:
            self._waiting.setdefault(key)

    def add_at(self, key: Q, when: datetime) -> None:
        """The key needs a pass at ``when``, unless an earlier one is already set."""
        current = self._wake.get(key)
        if current is not None and current <= when:
            return
        self._wake[key] = when
        self._sequence += 1
        heapq.heappush(self._later, (when, self._sequence, key))

    def take(self, now: datetime) -> Q | None:
        """The next due key, oldest first, or None if none is due."""
        while self._later and self._later[0][0] <= now:
            when, _, key = heapq.heappop(self._later)
            if self._wake.get(key) == when:
                del self._wake[key]
                self.add(key)
        if not self._waiting:
            return None
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._working.add(key)
        return key

    def done(self, key: Q) -> None:
        """The worker succeeded. Forget past failures."""
        self._failures.pop(key, None)
        self._finish(key)

    def failed(self, key: Q, now: datetime) -> datetime:
        """The worker failed. Schedule a retry and return its time.

        A key added meanwhile is retried soon, but not at once: the addition may be a result of the
        failure itself, such as a write that was rolled back.
        """
        self._failures[key] = failures = self._failures.get(key, 0) + 1
        when = now + self._retry(1 if key in self._again else failures)
        self._again.discard(key)
        self.add_at(key, when)
        self._finish(key)
        return when

    def next_due(self) -> datetime | None:
        """When the loop must wake even if nothing else happens."""
        return self._later[0][0] if self._later else None

    def _finish(self, key: Q) -> None:
        assert key in self._working, f"{key} was finished but never taken"
        self._working.remove(key)
        if key in self._again:
            self._again.remove(key)
            self._waiting.setdefault(key)
