"""The source of time.

Decisions take ``now`` as an argument; code that acts holds a ``Clock``. Only ``app``
creates the real one, so that the simulator and the tests can run the same code through a
day in a second.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""Where virtual time starts unless a test says otherwise."""


class Clock(Protocol):
    def now(self) -> datetime:
        """The current time, in UTC, timezone-aware."""


class SystemClock:
    """The machine's wall clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class VirtualClock:
    """A clock that advances only when told to."""

    def __init__(self, start: datetime = EPOCH) -> None:
        self._now = start

    def now(self) -> datetime:
        return self._now

    def advance(self, step: timedelta) -> None:
        assert step >= timedelta(0), "virtual time does not run backwards"
        self._now += step
