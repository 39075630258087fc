"""The sizes and waits of pools over time, kept across restarts.

Sizes are sampled from the views; waits are counted where those for Prometheus are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.api.paths import encode
from bullpen.controllers.leases.lease_counter import Counted, LeaseCounter
from bullpen.controllers.views import Views
from bullpen.core.leases.lease_figures import Assigned
from bullpen.core.leases.recent_waits import RecentWaits, Wait, WaitSummary
from bullpen.core.time_series import COARSE, FINE, Buckets, Point, TimeSeries, totals
from bullpen.dashboard import rows
from bullpen.dashboard.rows import Row, pool_row_name
from bullpen.errors import Refused
from bullpen.kit import times
from bullpen.kit.clock import Clock

log = logging.getLogger("bullpen.dashboard")

FIGURES = ("leased", "warm", "starting", "failed", "max")
"""Fields of a pool's row."""

SAMPLE_SECONDS = 10.0
SAVE_EVERY = timedelta(minutes=10)
POOLS_MAX = 100
"""Pools with a history; a further one takes the place of the one that was sampled longest ago."""

Key = tuple[str, str]
"""Namespace of a pool, and its kind and name as its row has them."""


class SavedSeries(msgspec.Struct):
    """A series in the file."""

    namespace: str
    name: str
    fine: list[tuple[str, list[float]]]
    coarse: list[tuple[str, list[float]]]
    waits: list[tuple[str, float, bool]] = []
    """Moment, seconds waited, whether a target was free. Earlier releases kept none."""


@dataclass(slots=True)
class _Pool:
    sizes: TimeSeries = field(default_factory=TimeSeries)
    waits: RecentWaits = field(default_factory=RecentWaits)


class History:
    def __init__(
        self,
        views: Views,
        counter: LeaseCounter,
        *,
        clock: Clock,
        save: Callable[[bytes], None] | None,
    ) -> None:
        """``save`` is None if nothing is kept across restarts."""
        self._views = views
        self._pools = views[VirtualTargetPool]
        self._clock = clock
        self._save = save
        self._began = clock.now()
        self._kept: dict[Key, _Pool] = {}
        """Longest without a sample first."""

        counter.listen(self._counted)

    async def run(self) -> None:
        """Sample until cancelled; save now and then, and at the end."""
        saved = self._clock.steady()
        try:
            while True:
                self.sample()
                if self._clock.steady() - saved >= SAVE_EVERY:
                    saved = self._clock.steady()
                    await asyncio.to_thread(self._keep, self.saved())
                await asyncio.sleep(SAMPLE_SECONDS)
        finally:
            self.sample()
            self._keep(self.saved())

    def _keep(self, content: bytes) -> None:
        """Save it. A full disk costs history, and nothing else."""
        if self._save is None:
            return
        try:
            self._save(content)
        except Refused as error:
            log.warning("the history of pools is not saved", extra={"cause": error.message})

    def _counted(self, counted: Counted) -> None:
        figure, exporter = counted.figure, counted.exporter
        name = pool_row_name(exporter) if exporter is not None else ""
        if name and isinstance(figure, Assigned):
            pool = self._pool((counted.namespace, name))
            pool.waits.add(Wait(self._clock.now(), figure.waited, figure.at_once))

    def _pool(self, key: Key) -> _Pool:
        """What is kept of a pool, which is now the last one to be forgotten."""
        found = self._kept.pop(key, None) or _Pool()
        self._kept[key] = found
        while len(self._kept) > POOLS_MAX:
            del self._kept[next(iter(self._kept))]
        return found

    def sample(self) -> None:
        now = self._clock.now()
        found = [rows.set_row(each) for each in self._views.sets.all()]
        found += [rows.pool_row(each) for each in self._pools.all()]
        for row in found:
            sizes = self._pool((row["ns"], row["name"])).sizes
            sizes.add(now, [float(row[figure]) for figure in FIGURES])

    def of(self, namespace: str, name: str, *, month: bool) -> Row:
        """The history of a pool; empty if there is none."""
        kept = self._kept.get((namespace, name)) or _Pool()
        resolution = COARSE if month else FINE
        now = self._clock.now()
        points = (kept.sizes.coarse if month else kept.sizes.fine).points(now)
        start = now - resolution.span
        seconds = dict(zip(FIGURES, totals(points, start=start, end=now), strict=False))
        return {
            "waits": _waits(kept.waits.summary(now)),
            "figures": FIGURES,
            "seconds": {figure: seconds.get(figure, 0.0) for figure in ("leased", "warm")},
            "from": start.timestamp(),
            "to": now.timestamp(),
            "since": None if self._save is not None else self._began.timestamp(),
            "points": [[moment.timestamp(), *values] for moment, values in points],
        }

    def saved(self) -> bytes:
        """Everything, as ``restore`` reads it."""
        now = self._clock.now()
        return encode(
            [
                {
                    "namespace": namespace,
                    "name": name,
                    "fine": _saved(kept.sizes.fine, now),
                    "coarse": _saved(kept.sizes.coarse, now),
                    "waits": [
                        (times.text(wait.moment), wait.waited.total_seconds(), wait.at_once)
                        for wait in kept.waits.within(now)
                    ],
                }
                for (namespace, name), kept in self._kept.items()
            ]
        )

    def restore(self, data: bytes) -> None:
        """Continue what an earlier process saved; what cannot be read is reported and dropped."""
        try:
            for found in msgspec.json.decode(data, type=list[SavedSeries])[-POOLS_MAX:]:
                series = TimeSeries()
                series.fine.restore(_restored(found.fine))
                series.coarse.restore(_restored(found.coarse))
                waits = RecentWaits(
                    Wait(times.parse(moment), timedelta(seconds=seconds), at_once)
                    for moment, seconds, at_once in found.waits
                )
                self._kept[found.namespace, found.name] = _Pool(series, waits)
        except (msgspec.DecodeError, ValueError, OverflowError) as error:
            log.warning("the history of pools cannot be read", extra={"cause": str(error)})


def _waits(found: WaitSummary) -> Row:
    return {
        "served": found.served,
        "atOnce": found.at_once,
        "typicalSeconds": found.typical.total_seconds() if found.typical is not None else None,
        "slowSeconds": found.slow.total_seconds() if found.slow is not None else None,
    }


def _saved(buckets: Buckets, now: datetime) -> list[Any]:
    return [(times.text(moment), values) for moment, values in buckets.points(now)]


def _restored(points: list[tuple[str, list[float]]]) -> list[Point]:
    found: list[Point] = []
    for moment, values in points:
        if len(values) != len(FIGURES):
            raise ValueError(f"{len(values)} figures, {len(FIGURES)} expected")
        found.append((times.parse(moment), tuple(values)))
    return found
