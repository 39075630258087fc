"""Time and waiting.

The source of time. Decisions take ``now`` as an argument; code that acts holds a ``Clock``.
Only ``app`` creates the real one, so that the simulator and the tests can run the same code
through a day in a second.

A clock has two readings. The wall clock answers "is it 14:00 yet?"; it may be set forwards or
back by hours. Steady time answers "have five minutes passed?", and never steps.

How long to wait before a retry: doubling, capped, jittered. Pure: the attempt number and
the random source are inputs, and nothing here waits.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""Where virtual time starts unless a test says otherwise."""


class Clock(Protocol):
    def now(self) -> datetime:
        """The current time, in UTC, timezone-aware. It may step in both directions."""

    def steady(self) -> timedelta:
        """The time since an arbitrary start. Setting the wall clock does not change it."""


class SystemClock:
    """The machine's wall clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def steady(self) -> timedelta:
        return timedelta(seconds=time.monotonic())


class VirtualClock:
    """A clock that advances only when told to."""

    def __init__(self, start: datetime = EPOCH) -> None:
        self._start = self._now = start

    def now(self) -> datetime:
        return self._now

    def steady(self) -> timedelta:
        return self._now - self._start

    def advance(self, step: timedelta) -> None:
        assert step >= timedelta(0), "virtual time does not run backwards"
        self._now += step


CLOCK_STEP = timedelta(milliseconds=250)
"""The wall clock counts as set when it moved this much against steady time.

Small enough that the sum of many small corrections makes nothing late by more than this.
"""


class WallTimes:
    """Steady times as wall times: all move when the clock is set, and none does before."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._epoch = clock.now() - clock.steady()

    @property
    def epoch(self) -> datetime:
        """The wall time at which steady time was zero; it changes when the clock is set."""
        measured = self._clock.now() - self._clock.steady()
        if abs(measured - self._epoch) >= CLOCK_STEP:
            self._epoch = measured
        return self._epoch

    def of(self, steady: timedelta) -> datetime:
        """The moment of ``steady`` by the wall clock as it is set now."""
        return self.epoch + steady


_DOUBLINGS_MAX = 64
"""More would overflow a float long after any cap has been reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    first: timedelta
    """The wait after the first failure, before jitter."""

    cap: timedelta
    """The longest wait, including jitter."""

    jitter: float = 0.2
    """The maximum share of a wait, 0 to 1, that is subtracted at random."""

    def __post_init__(self) -> None:
        assert timedelta(0) < self.first <= self.cap
        assert 0 <= self.jitter <= 1

    def delay(self, failures: int, chance: random.Random) -> timedelta:
        """The wait after ``failures`` consecutive failures; zero without a failure."""
        if failures <= 0:
            return timedelta(0)
        doublings = min(failures - 1, _DOUBLINGS_MAX)
        longest = self.cap.total_seconds()
        seconds = min(self.first.total_seconds() * 2.0**doublings, longest)
        # Jitter only shortens: the cap always holds, and waits spread out below it.
        return timedelta(seconds=seconds * (1 - self.jitter * chance.random()))
