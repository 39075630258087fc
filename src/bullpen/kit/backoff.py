"""How long to wait before a retry: doubling, capped, jittered.

Pure: the attempt number and the random source are inputs, and nothing here waits.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta

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
