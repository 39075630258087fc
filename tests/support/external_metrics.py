"""A small adapter: ``external.metrics.k8s.io`` for an HPA, from Bullpen's external scaler.

It does what KEDA's metrics server does: a metric is asked for, and the scaler is called with
the metadata of a trigger.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

GROUP = "external.metrics.k8s.io"
VERSION = "v1beta1"


def api_service(service: str, namespace: str, port: int) -> dict[str, object]:
    """What makes the API server of a cluster ask the adapter."""
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{VERSION}.{GROUP}"},
        "spec": {
            "group": GROUP,
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

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0].strip("/").split("/")
            answer: dict[str, object]
            if path == ["apis", GROUP, VERSION]:
                answer = {
                    "kind": "APIResourceList",
                    "apiVersion": "v1",
                    "groupVersion": f"{GROUP}/{VERSION}",
                    "resources": [],
                }
            elif len(path) == 6 and path[3] == "namespaces":
                asked.append(path[5])
                item = {
                    "metricName": path[5],
                    "metricLabels": {},
                    "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    "value": f"{value_of(path[5]):g}",
                }
                answer = {
                    "kind": "ExternalMetricValueList",
                    "apiVersion": f"{GROUP}/{VERSION}",
                    "metadata": {},
                    "items": [item],
                }
            else:
                self.send_error(404)
                return
            body = json.dumps(answer).encode()
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
        yield server.server_address[1], asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
