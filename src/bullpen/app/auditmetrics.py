"""How many events the audit log recorded and lost, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from bullpen.audit.log import AuditLog


class AuditMetrics(Collector):
    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(
            "bullpen_audit_events", "Events accepted by the audit log.", value=self._log.recorded
        )
        yield CounterMetricFamily(
            "bullpen_audit_dropped",
            "Events that the audit log lost, because its disk was stuck or full.",
            value=self._log.dropped,
        )
