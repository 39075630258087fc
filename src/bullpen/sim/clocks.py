"""The clock of one machine: right about how time passes, wrong about what time it is."""

from __future__ import annotations

from datetime import datetime, timedelta

from bullpen.kit.clock import Clock


class SkewedClock:
    def __init__(self, base: Clock) -> None:
        self._base = base
        self.offset = timedelta(0)

    def now(self) -> datetime:
        return self._base.now() + self.offset
