"""How busy a pool is, in the terms of an autoscaler: pure figures, and the metrics made of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Metric(StrEnum):
    """What an autoscaler may ask about a pool."""

    LEASES = "leases"
    """Members that are leased, plus leases that wait for one: as many members as are needed."""

    WAITING_LEASES = "waitingLeases"
    """Leases that wait for a member."""

    UTILIZATION = "utilization"
    """Leased members as a percentage of all members."""


TARGETS = {Metric.LEASES: 1.0, Metric.WAITING_LEASES: 1.0, Metric.UTILIZATION: 80.0}
"""The value that an autoscaler aims at, unless it is given another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLoad:
    """The use of one pool at one moment."""

    replicas: int
    leased: int
    waiting: int

    @property
    def active(self) -> bool:
        """Whether a lease uses the pool or waits for it."""
        return self.leased > 0 or self.waiting > 0

    def value(self, metric: Metric) -> float:
        """The value of a metric. A pool without members is full as soon as a lease waits."""
        match metric:
            case Metric.LEASES:
                return float(self.leased + self.waiting)
            case Metric.WAITING_LEASES:
                return float(self.waiting)
            case Metric.UTILIZATION:
                if not self.replicas:
                    return 100.0 if self.waiting else 0.0
                return 100.0 * self.leased / self.replicas
