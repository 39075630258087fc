"""Where time, randomness and ids come from, and the waits between attempts that use them."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from datetime import timedelta

from bullpen.kit.clock import Backoff, Clock, SystemClock
from bullpen.kit.ids import Ids, RandomIds
from bullpen.runtime.loop import Retry

BACKOFF = Backoff(first=timedelta(milliseconds=20), cap=timedelta(seconds=30))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    clock: Clock
    ids: Ids
    chance: random.Random

    @classmethod
    def real(cls) -> Sources:
        """The sources of a production process."""
        return cls(clock=SystemClock(), ids=RandomIds(), chance=random.SystemRandom())

    @property
    def retry(self) -> Retry:
        """The wait after consecutive failures of a watch, a pass or a part."""
        return functools.partial(BACKOFF.delay, chance=self.chance)
