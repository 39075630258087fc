"""Pool metrics for Prometheus: read from the status of the sets at each scrape.

The labels name sets, whose number is limited by what operators declare, and never members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bullpen.api.exporterset import ExporterSet

LABELS = ("namespace", "pool")


class PoolMetrics(Collector):
    def __init__(self, sets: Callable[[], Iterable[ExporterSet]]) -> None:
        self._sets = sets

    def collect(self) -> Iterator[Metric]:
        replicas = GaugeMetricFamily(
            "bullpen_pool_replicas", "Members of a pool, by state.", labels=(*LABELS, "state")
        )
        created = CounterMetricFamily(
            "bullpen_pool_members_created", "Members created by a pool.", labels=LABELS
        )
        failing = GaugeMetricFamily(
            "bullpen_pool_start_failures",
            "Failures to start since the last success.",
            labels=LABELS,
        )
        for owner in self._sets():
            named = (owner.metadata.namespace, owner.metadata.name)
            status = owner.status
            for state, count in (
                ("all", status.replicas),
                ("ready", status.ready_replicas),
                ("available", status.available_replicas),
                ("leased", status.leased_replicas),
            ):
                replicas.add_metric((*named, state), count)
            created.add_metric(named, status.created)
            failing.add_metric(named, status.start_failures.count if status.start_failures else 0)
        yield from (replicas, created, failing)
