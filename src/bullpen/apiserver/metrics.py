"""Metrics of the API server, for Prometheus.

Labels are bounded by the resource table: never a name, a namespace or a token.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    def __init__(self) -> None:
        self.collectors = CollectorRegistry()
        self.requests = Counter(
            "bullpen_apiserver_requests",
            "Requests answered, by verb, resource and status code.",
            ("verb", "resource", "code"),
            registry=self.collectors,
        )
        self.seconds = Histogram(
            "bullpen_apiserver_request_seconds",
            "Time from the last byte of a request to its answer; watches are left out.",
            ("verb",),
            registry=self.collectors,
        )
        self.in_flight = Gauge(
            "bullpen_apiserver_requests_in_flight",
            "Requests being answered, watches left out.",
            registry=self.collectors,
        )
        self.watchers = Gauge(
            "bullpen_apiserver_watchers", "Watch streams open now.", registry=self.collectors
        )
        self.revision = Gauge(
            "bullpen_store_revision", "Newest durable revision.", registry=self.collectors
        )
