"""The clock of one machine: its rate is correct, its time may be wrong."""

from __future__ import annotations

from datetime import datetime, timedelta

from bullpen.kit.clock import Clock


class SkewedClock:
    def __init__(self, base: Clock) -> None:
        self._base = base
        self.offset = timedelta(0)
        self.highest = base.now()
        """The latest time it showed before it was last set back."""

    def jump(self, by: timedelta) -> None:
        self.highest = max(self.highest, self.now())
        self.offset += by

    def now(self) -> datetime:
        return self._base.now() + self.offset
