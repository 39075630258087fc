"""Figures over time in a bounded space: by the minute for a day, by the half hour for a month.

Pure. A bucket holds the means of its samples. A bucket equal to the one before is not kept, so
that figures that do not change take no space.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

DIGITS = 2
"""Decimal places that are kept of a mean."""


@dataclass(frozen=True, slots=True)
class Resolution:
    step: timedelta
    span: timedelta
    """How far it reaches back."""

    def bucket(self, moment: datetime) -> int:
        return int(moment.timestamp() // self.step.total_seconds())

    def start(self, bucket: int) -> datetime:
        return datetime.fromtimestamp(bucket * self.step.total_seconds(), UTC)

    @property
    def buckets_max(self) -> int:
        return int(self.span / self.step)


FINE = Resolution(timedelta(minutes=1), timedelta(days=1))
COARSE = Resolution(timedelta(minutes=30), timedelta(days=31))

Point = tuple[datetime, tuple[float, ...]]
"""From this time on, the figures had these values."""


def totals(points: Sequence[Point], *, start: datetime, end: datetime) -> tuple[float, ...]:
    """Each figure times the seconds for which it had its value, between two moments."""
    if not points:
        return ()
    found = [0.0] * len(points[0][1])
    ends = [moment for moment, _ in points[1:]] + [end]
    for (begin, values), until in zip(points, ends, strict=True):
        seconds = max(0.0, (min(until, end) - max(begin, start)).total_seconds())
        found = [total + value * seconds for total, value in zip(found, values, strict=True)]
    return tuple(found)


class Buckets:
    """The figures at one resolution."""

    def __init__(self, resolution: Resolution) -> None:
        self._resolution = resolution
        self._kept: deque[tuple[int, tuple[float, ...]]] = deque(maxlen=resolution.buckets_max)
        self._current: int | None = None
        self._sums: list[float] = []
        self._samples = 0

    def add(self, now: datetime, values: Sequence[float]) -> None:
        bucket = self._resolution.bucket(now)
        # After the clock was set back, samples count for the newest bucket until it is over.
        if self._current is not None and bucket <= self._current:
            self._sums = [a + b for a, b in zip(self._sums, values, strict=True)]
            self._samples += 1
            return
        self._close()
        self._current, self._sums, self._samples = bucket, list(values), 1

    def _close(self) -> None:
        if self._current is None:
            return
        means = self._means()
        if not self._kept or self._kept[-1][1] != means:
            self._kept.append((self._current, means))

    def _means(self) -> tuple[float, ...]:
        return tuple(round(total / self._samples, DIGITS) for total in self._sums)

    def points(self, now: datetime) -> list[Point]:
        """Where the figures changed, oldest first; the first point may be before the span."""
        oldest = self._resolution.bucket(now) - self._resolution.buckets_max
        all_of_it = [*self._kept, *self._newest()]
        first = max((i for i, (at, _) in enumerate(all_of_it) if at <= oldest), default=0)
        return [(self._resolution.start(at), means) for at, means in all_of_it[first:]]

    def _newest(self) -> Iterator[tuple[int, tuple[float, ...]]]:
        if self._current is not None:
            yield self._current, self._means()

    def restore(self, points: Sequence[Point]) -> None:
        """Continue with points that ``points`` returned earlier."""
        for moment, values in points:
            self.add(moment, values)


class TimeSeries:
    """The figures of one subject at both resolutions."""

    def __init__(self) -> None:
        self.fine, self.coarse = Buckets(FINE), Buckets(COARSE)

    def add(self, now: datetime, values: Sequence[float]) -> None:
        self.fine.add(now, values)
        self.coarse.add(now, values)
