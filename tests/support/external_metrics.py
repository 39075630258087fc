"""Small adapters for the metrics APIs of a cluster, which an HPA reads.

One serves ``external.metrics.k8s.io`` from Bullpen's external scaler, as KEDA's metrics server
does: a metric is asked for, and the scaler is called with the metadata of a trigger. The other
serves ``metrics.k8s.io``, the use of Pods, as the metrics server does that asks their nodes.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

VERSION = "v1beta1"
EXTERNAL, OF_PODS = "external.metrics.k8s.io", "metrics.k8s.io"

Answer = Callable[[list[str], Mapping[str, str]], dict[str, Any] | None]
"""What a path below the version is answered with, by its segments and query."""


def api_service(service: str, namespace: str, port: int, group: str = EXTERNAL) -> dict[str, Any]:
    """What makes the API server of a cluster ask an adapter."""
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{VERSION}.{group}"},
        "spec": {
            "group": group,
            "version": VERSION,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"name": service, "namespace": namespace, "port": port},
        },
    }


@contextlib.contextmanager
def adapter(
    certificate: tuple[Path, Path], value_of: Callable[[str], float]
) -> Iterator[tuple[int, list[str]]]:
    """Answer at a port of this machine; yields the port, and the metrics that were asked for."""
    asked: list[str] = []

    def answer(path: list[str], query: Mapping[str, str]) -> dict[str, Any] | None:
        if len(path) != 3 or path[0] != "namespaces":
            return None
        metric = path[2]
        asked.append(metric)
        item = {
            "metricName": metric,
            "metricLabels": {},
            "timestamp": _now(),
            "value": f"{value_of(metric):g}",
        }
        return _list(EXTERNAL, "ExternalMetricValueList", item)

    with _served(certificate, EXTERNAL, [], answer) as port:
        yield port, asked


@contextlib.contextmanager
def pod_metrics(
    certificate: tuple[Path, Path], names_of: Callable[[str, str], list[str]], memory: str
) -> Iterator[tuple[int, list[str]]]:
    """Say that each Pod uses so much; yields the port, and the selectors that were asked for.

    ``names_of``: the Pods of a namespace that a selector selects.
    """
    asked: list[str] = []

    def answer(path: list[str], query: Mapping[str, str]) -> dict[str, Any] | None:
        if len(path) != 3 or (path[0], path[2]) != ("namespaces", "pods"):
            return None
        namespace, selector = path[1], query.get("labelSelector", "")
        asked.append(selector)
        items = (
            {
                "metadata": {"name": name, "namespace": namespace},
                "timestamp": _now(),
                "window": "30s",
                "containers": [{"name": "exporter", "usage": {"memory": memory}}],
            }
            for name in names_of(namespace, selector)
        )
        return _list(OF_PODS, "PodMetricsList", *items)

    pods = {"name": "pods", "kind": "PodMetrics", "namespaced": True, "verbs": ["get", "list"]}
    with _served(certificate, OF_PODS, [{**pods, "singularName": ""}], answer) as port:
        yield port, asked


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _list(group: str, kind: str, *items: dict[str, Any]) -> dict[str, Any]:
    version = {"kind": kind, "apiVersion": f"{group}/{VERSION}", "metadata": {}}
    return {**version, "items": list(items)}


@contextlib.contextmanager
def _served(
    certificate: tuple[Path, Path], group: str, resources: list[dict[str, Any]], answer: Answer
) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            path = url.path.strip("/").split("/")
            found: dict[str, Any] | None = None
            if path == ["apis", group, VERSION]:
                found = {
                    "kind": "APIResourceList",
                    "apiVersion": "v1",
                    "groupVersion": f"{group}/{VERSION}",
                    "resources": resources,
                }
            elif path[:3] == ["apis", group, VERSION]:
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                found = answer(path[3:], query)
            if found is None:
                self.send_error(404)
                return
            body = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Requests are not printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
