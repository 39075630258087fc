"""How a benchmark compares: repeated, interleaved, and only ever as a ratio.

Wall-clock figures of one machine mean little on another and vary on a busy one. So ours and
the reference alternate within one run, each round gives one ratio, and the result is the
median ratio with its spread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

Sample = TypeVar("Sample")


_REACHED = {True: "yes", False: "no", None: ""}

STAT = Path("/proc/stat")
STEAL = 7
"""Index in the times of a processor: user, nice, system, idle, iowait, irq, softirq, steal."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio to reach: from below for speeds, from above for times and costs."""

    ratio: float
    at_least: bool = True

    def reached(self, ratio: float) -> bool:
        return ratio >= self.ratio if self.at_least else ratio <= self.ratio

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.ratio:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One comparison."""

    name: str
    unit: str
    """Unit of ``ours`` and ``reference``; the ratio has none."""

    ours: float
    reference: float
    ratio: float
    ratio_min: float
    ratio_max: float
    goal: Goal | None
    """None for a figure that is only informative."""

    details: Mapping[str, float] = field(default_factory=dict)

    @property
    def reached(self) -> bool | None:
        return self.goal.reached(self.ratio) if self.goal else None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Result:
        """The inverse of ``document``, except for what that rounds."""
        goal = document["goal"]
        return cls(
            name=document["name"],
            unit=document["unit"],
            ours=document["ours"],
            reference=document["reference"],
            ratio=document["ratio"],
            ratio_min=document["ratioMin"],
            ratio_max=document["ratioMax"],
            goal=None if goal is None else Goal(goal, at_least=document["better"] == "higher"),
            details=document["details"],
        )

    def document(self) -> dict[str, object]:
        return {
            "name": self.name,
            "ratio": round(self.ratio, 3),
            "ratioMin": round(self.ratio_min, 3),
            "ratioMax": round(self.ratio_max, 3),
            "goal": self.goal.ratio if self.goal else None,
            "better": "higher" if self.goal and self.goal.at_least else "lower",
            "reached": self.reached,
            "unit": self.unit,
            "ours": round(self.ours, 3),
            "reference": round(self.reference, 3),
            "details": {name: round(value, 3) for name, value in self.details.items()},
        }


async def interleaved(
    rounds: int, *contenders: Callable[[], Awaitable[Sample]]
) -> list[list[Sample]]:
    """The samples of each contender, round by round.

    The order is reversed every round, so that neither side always has the warmer machine.
    """
    samples: list[list[Sample]] = [[] for _ in contenders]
    for number in range(rounds):
        turns = list(zip(contenders, samples, strict=True))
        for contender, results in turns if number % 2 == 0 else reversed(turns):
            results.append(await contender())
    return samples


def compare(
    name: str,
    ours: Sequence[float],
    reference: Sequence[float],
    *,
    unit: str,
    goal: Goal | None,
    details: Mapping[str, float] | None = None,
) -> Result:
    """One result from one sample of each side per round."""
    ratios = [mine / theirs for mine, theirs in zip(ours, reference, strict=True)]
    return Result(
        name=name,
        unit=unit,
        ours=median(ours),
        reference=median(reference),
        ratio=median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
        goal=goal,
        details=details or {},
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value that a ``share`` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def render(results: Sequence[Result]) -> str:
    """A table for users."""
    header = ("benchmark", "ratio", "spread", "goal", "reached", "ours", "reference", "unit", "")
    rows = [header, *map(_row, results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _row(result: Result) -> tuple[str, ...]:
    return (
        result.name,
        f"{result.ratio:.2f}",
        f"{result.ratio_min:.2f}–{result.ratio_max:.2f}",
        str(result.goal or ""),
        _REACHED[result.reached],
        figure(result.ours),
        figure(result.reference),
        result.unit,
        " ".join(f"{name}={figure(value)}" for name, value in result.details.items()),
    )


def figure(value: float) -> str:
    """A number in readable form."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class MachineTimes:
    """Ticks of all processors since boot.

    Neither side of a comparison can influence the steal time of a virtual machine.
    """

    stolen: int
    total: int

    def share_since(self, before: MachineTimes) -> float:
        """The part of the time since ``before`` that was stolen."""
        passed = self.total - before.total
        return (self.stolen - before.stolen) / passed if passed else 0.0


def machine_times(stat: Path = STAT) -> MachineTimes:
    first = stat.read_text().partition("\n")[0]
    ticks = [int(word) for word in first.split()[1 : STEAL + 2]]
    return MachineTimes(stolen=ticks[STEAL], total=sum(ticks))
