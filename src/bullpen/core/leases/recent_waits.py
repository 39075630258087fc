"""How well a pool served the leases of the last day: hit rate, and how long they waited. Pure.

Built from the figures that are counted for metrics (``lease_figures``), so both say the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from bullpen.kit.quantiles import quantile

WAITS_MAX = 500
"""Leases of one pool that count; of more, the newest."""

SPAN = timedelta(days=1)
"""Older leases do not count."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A lease that got a target."""

    moment: datetime
    waited: timedelta
    at_once: bool
    """Whether a target was free, so that the lease never had to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSummary:
    served: int
    at_once: int
    typical: timedelta | None
    """Half of the leases waited no longer; None if there were none."""

    slow: timedelta | None
    """Nineteen of twenty waited no longer."""


class RecentWaits:
    """The newest leases that a pool served."""

    def __init__(self, waits: Iterable[Wait] = ()) -> None:
        self._waits = deque(waits, maxlen=WAITS_MAX)

    def add(self, wait: Wait) -> None:
        self._waits.append(wait)

    def within(self, now: datetime) -> list[Wait]:
        """Those of the last day, oldest first; none from the future of a clock that was set."""
        return [wait for wait in self._waits if now - SPAN < wait.moment <= now]

    def summary(self, now: datetime) -> WaitSummary:
        found = self.within(now)
        waits = [wait.waited for wait in found]
        return WaitSummary(
            served=len(found),
            at_once=sum(wait.at_once for wait in found),
            typical=quantile(waits, 0.5),
            slow=quantile(waits, 0.95),
        )
