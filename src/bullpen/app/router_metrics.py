"""What a router counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bullpen.services.router.server import Router


class RouterMetrics(Collector):
    def __init__(self, router: Router) -> None:
        self._router = router

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "bullpen_router_streams", "Streams between clients and exporters.",
            value=self._router.joined,
        )  # fmt: skip
        passed = CounterMetricFamily(
            "bullpen_router_bytes",
            "Bytes passed on, by the side that sent them.",
            labels=("sender",),
        )
        for sender, count in zip(("client", "exporter"), self._router.passed(), strict=True):
            passed.add_metric((sender,), count)
        yield passed
