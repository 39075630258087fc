"""What people notice of a lab, for Prometheus: leases, waits, targets and the queue.

Labels name namespaces, pools and reasons, whose number is limited; never a client or a lease.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator
from typing import assert_never

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bullpen.controllers.leases.lease_counter import Counted, LeaseCounter
from bullpen.controllers.views import Views
from bullpen.core import conditions
from bullpen.core.exporters.target_state import pool_of, target_state
from bullpen.core.leases import lifecycle
from bullpen.core.leases.lease_figures import Assigned, Ended, Refused, Requested
from bullpen.core.leases.lease_trace import trace_id
from bullpen.core.leases.lifecycle import Phase
from bullpen.kit.clock import Clock

WAIT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 900, 3600, 14400)
HELD_SECONDS = (10, 30, 60, 300, 900, 1800, 3600, 7200, 14400, 28800, 86400)


class LeaseMetrics(Collector):
    def __init__(self, views: Views, counter: LeaseCounter, *, clock: Clock) -> None:
        self._views = views
        self._clock = clock
        where = ("namespace",)
        self._requested = Counter(
            "bullpen_leases_requested", "Leases that were requested.", where, registry=None
        )
        self._refused = Counter(
            "bullpen_leases_refused",
            "Leases that can never be served, by reason.",
            (*where, "reason"),
            registry=None,
        )
        self._assigned = Counter(
            "bullpen_leases_assigned",
            "Leases that got a target, by its pool, and whether one was free at once.",
            (*where, "pool", "at_once"),
            registry=None,
        )
        self._waited = Histogram(
            "bullpen_lease_wait_seconds",
            "Time from the request of a lease, or its booked begin, until it got a target.",
            (*where, "pool"),
            buckets=WAIT_SECONDS,
            registry=None,
        )
        self._ended = Counter(
            "bullpen_leases_ended",
            "Leases that ended, by reason.",
            (*where, "reason"),
            registry=None,
        )
        self._held = Histogram(
            "bullpen_lease_held_seconds",
            "How long ended leases had their target.",
            where,
            buckets=HELD_SECONDS,
            registry=None,
        )
        counter.listen(self._counted)

    def _counted(self, counted: Counted) -> None:
        namespace, exporter = counted.namespace, counted.exporter
        exemplar = {"trace_id": f"{trace_id(counted.lease_uid):032x}"}
        match counted.figure:
            case Requested():
                self._requested.labels(namespace).inc()
            case Refused(reason=reason):
                self._refused.labels(namespace, reason).inc()
            case Assigned(waited=waited, at_once=at_once):
                pool = pool_of(exporter) if exporter is not None else ""
                self._assigned.labels(namespace, pool, str(at_once).lower()).inc()
                self._waited.labels(namespace, pool).observe(waited.total_seconds(), exemplar)
            case Ended(reason=reason, held=held):
                self._ended.labels(namespace, reason).inc()
                if held is not None:
                    self._held.labels(namespace).observe(held.total_seconds(), exemplar)
            case _:
                assert_never(counted.figure)

    def collect(self) -> Iterator[Metric]:
        counted = (self._requested, self._refused, self._assigned, self._ended)
        for metric in (*counted, self._waited, self._held):
            yield from metric.collect()
        yield self._queue()
        yield self._targets()

    def _queue(self) -> GaugeMetricFamily:
        now = self._clock.now()
        found: Counts[tuple[str, str]] = Counts()
        for lease in self._views.leases.all():
            if lifecycle.phase(lease, now=now) is Phase.WAITING:
                said = conditions.get(lease.status.conditions, "Pending")
                found[lease.metadata.namespace, said.reason if said is not None else ""] += 1
        family = GaugeMetricFamily(
            "bullpen_leases_waiting",
            "Leases that wait for a target now, by reason.",
            labels=("namespace", "reason"),
        )
        for labels, count in sorted(found.items()):
            family.add_metric(labels, count)
        return family

    def _targets(self) -> GaugeMetricFamily:
        found = Counts(
            (exporter.metadata.namespace, pool_of(exporter), target_state(exporter).value)
            for exporter in self._views.exporters.all()
        )
        family = GaugeMetricFamily(
            "bullpen_targets", "Targets, by pool and state.", labels=("namespace", "pool", "state")
        )
        for labels, count in sorted(found.items()):
            family.add_metric(labels, count)
        return family
