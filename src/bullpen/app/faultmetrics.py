"""Objects that could not be processed, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bullpen.controllers.faults import unprocessed
from bullpen.runtime.faults import Faults


class FaultMetrics(Collector):
    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def collect(self) -> Iterator[Metric]:
        present = GaugeMetricFamily(
            "bullpen_objects_unprocessed",
            "Objects that cannot be processed because of a bug, by kind.",
            labels=("kind",),
        )
        for kind, count in sorted(unprocessed(self._faults).items()):
            present.add_metric((kind,), count)
        failures = CounterMetricFamily(
            "bullpen_object_failures",
            "Unexpected failures to process an object, by kind and part of the service.",
            labels=("kind", "part"),
        )
        for (kind, part), count in sorted(self._faults.counts.items()):
            failures.add_metric((kind, part), count)
        yield from (present, failures)
