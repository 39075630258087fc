"""Liveness, readiness and metrics of a process, for Kubernetes and Prometheus.

Plain HTTP without secrets: ``/healthz`` and ``/livez`` say that the process answers,
``/readyz`` whether it is ready, ``/metrics`` what it counted.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bullpen.runtime.exposition import exposition


class Health:
    """A small ASGI application, and the state it reports."""

    def __init__(self) -> None:
        self.ready = ""
        """What the process does; empty until it is ready."""

        self.waiting = "starting"
        """What the process waits for until then."""

        self.standby = False
        """Whether it waits only because another replica leads."""

        self.collectors = CollectorRegistry()
        self.collectors.register(_Readiness(self))

    def wait_for(self, text: str, *, standby: bool = False) -> None:
        """Set what the process waits for; a standby is ready."""
        self.waiting, self.standby = text, standby

    @property
    def answers_ready(self) -> bool:
        """What ``/readyz`` says."""
        return bool(self.ready) or self.standby

    def count_requests(self, requests: Counter[tuple[str, str, int]]) -> None:
        """Also export the counts of requests to the API server."""
        self.collectors.register(_Requests(requests))

    @contextlib.contextmanager
    def counting(self, collectors: Iterable[Collector]) -> Iterator[None]:
        """Also export what ``collectors`` count, while the context is open."""
        added = tuple(collectors)
        for collector in added:
            self.collectors.register(collector)
        try:
            yield
        finally:
            for collector in added:
                self.collectors.unregister(collector)

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        accept = dict(scope.get("headers", ())).get(b"accept", b"").decode("latin-1")
        status, body, kind = self._answer(scope["method"], scope["path"], accept)
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _answer(self, method: str, path: str, accept: str) -> tuple[int, bytes, bytes]:
        if method not in ("GET", "HEAD"):
            return 405, b"only GET\n", b"text/plain"
        if path in ("/healthz", "/livez"):
            return 200, b"ok\n", b"text/plain"
        if path == "/readyz":
            said = f"{self.ready or self.waiting}\n".encode()
            return (200 if self.answers_ready else 503), said, b"text/plain"
        if path == "/metrics":
            body, kind = exposition(self.collectors, accept)
            return 200, body, kind.encode()
        return 404, b"there are /healthz, /readyz and /metrics\n", b"text/plain"


class _Readiness(Collector):
    def __init__(self, health: Health) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        text = "1 if this process does its work or is a standby, 0 if it cannot."
        yield GaugeMetricFamily("bullpen_ready", text, value=float(self._health.answers_ready))
        text = "1 if this process does its work, 0 if it is starting or a standby."
        yield GaugeMetricFamily("bullpen_active", text, value=float(bool(self._health.ready)))


class _Requests(Collector):
    def __init__(self, requests: Counter[tuple[str, str, int]]) -> None:
        self._requests = requests

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "bullpen_api_requests",
            "Requests to the API server, by verb, resource and status code; 0 is no answer.",
            labels=("verb", "resource", "code"),
        )
        for (verb, resource, code), count in sorted(self._requests.items()):
            family.add_metric((verb, resource, str(code)), count)
        yield family
