"""The sizes of pools over time, sampled from the views and kept across restarts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec

from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.api.paths import encode
from bullpen.controllers.views import Views
from bullpen.core.time_series import COARSE, FINE, Buckets, Point, TimeSeries
from bullpen.dashboard import rows
from bullpen.dashboard.rows import Row
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


class History:
    def __init__(self, views: Views, *, clock: Clock, save: Callable[[bytes], None]) -> None:
        self._views = views
        self._pools = views[VirtualTargetPool]
        self._clock = clock
        self._save = save
        self._series: dict[Key, TimeSeries] = {}
        """Longest without a sample first."""

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
        try:
            self._save(content)
        except Refused as error:
            log.warning("the history of pools is not saved", extra={"cause": error.message})

    def sample(self) -> None:
        now = self._clock.now()
        found = [rows.set_row(each) for each in self._views.sets.all()]
        found += [rows.pool_row(each) for each in self._pools.all()]
        for row in found:
            key = (row["ns"], row["name"])
            series = self._series.pop(key, None) or TimeSeries()
            self._series[key] = series
            series.add(now, [float(row[figure]) for figure in FIGURES])
        while len(self._series) > POOLS_MAX:
            del self._series[next(iter(self._series))]

    def of(self, namespace: str, name: str, *, month: bool) -> Row:
        """The history of a pool; empty if there is none."""
        series = self._series.get((namespace, name))
        resolution = COARSE if month else FINE
        now = self._clock.now()
        points: list[Point] = []
        if series is not None:
            points = (series.coarse if month else series.fine).points(now)
        return {
            "figures": FIGURES,
            "from": (now - resolution.span).timestamp(),
            "to": now.timestamp(),
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
                    "fine": _saved(series.fine, now),
                    "coarse": _saved(series.coarse, now),
                }
                for (namespace, name), series in self._series.items()
            ]
        )

    def restore(self, data: bytes) -> None:
        """Continue what an earlier process saved; what cannot be read is reported and dropped."""
        try:
            for found in msgspec.json.decode(data, type=list[SavedSeries])[-POOLS_MAX:]:
                series = TimeSeries()
                series.fine.restore(_restored(found.fine))
                series.coarse.restore(_restored(found.coarse))
                self._series[found.namespace, found.name] = series
        except (msgspec.DecodeError, ValueError) as error:
            log.warning("the history of pools cannot be read", extra={"cause": str(error)})


def _saved(buckets: Buckets, now: datetime) -> list[Any]:
    return [(times.text(moment), values) for moment, values in buckets.points(now)]


def _restored(points: list[tuple[str, list[float]]]) -> list[Point]:
    found: list[Point] = []
    for moment, values in points:
        if len(values) != len(FIGURES):
            raise ValueError(f"{len(values)} figures, {len(FIGURES)} expected")
        found.append((times.parse(moment), tuple(values)))
    return found
