"""Steal time of a virtual machine, which neither side of a comparison can influence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
STEAL = 7
"""Index in the times of a processor: user, nice, system, idle, iowait, irq, softirq, steal."""


@dataclass(frozen=True, slots=True)
class Times:
    """Ticks of all processors since boot."""

    stolen: int
    total: int

    def share_since(self, before: Times) -> float:
        """The part of the time since ``before`` that was stolen."""
        passed = self.total - before.total
        return (self.stolen - before.stolen) / passed if passed else 0.0


def times(stat: Path = STAT) -> Times:
    first = stat.read_text().partition("\n")[0]
    ticks = [int(word) for word in first.split()[1 : STEAL + 2]]
    return Times(stolen=ticks[STEAL], total=sum(ticks))
