"""Login discovery: tells ``jmp login`` the addresses of the service. Contains no secrets."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from bullpen.api.document import Document, encode
from bullpen.app.config import Config


def discovery(
    config: Config, *, endpoint: str, namespace: str, ca_pem: bytes, router: str = ""
) -> Document:
    """What ``jmp login`` needs to know; without ``router``, the controller names one per call."""
    return {
        "grpcEndpoint": endpoint,
        **({"routerEndpoint": router} if router else {}),
        "namespace": namespace,
        "caBundle": base64.b64encode(ca_pem).decode(),
        "oidc": [
            {"issuer": item.issuer, "clientId": item.client_id, "audiences": item.audiences}
            for item in config.oidc
        ],
    }


class LoginDiscovery:
    """A tiny ASGI application: ``/v1/auth/config`` and ``/healthz``."""

    def __init__(self, config: Document) -> None:
        self._bodies = {
            "/v1/auth/config": (200, encode(config), b"application/json"),
            "/healthz": (200, b"ok", b"text/plain"),
            "/": (200, b"Bullpen login discovery: /v1/auth/config\n", b"text/plain"),
        }

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        status, body, kind = self._bodies.get(scope["path"], (404, b"not found\n", b"text/plain"))
        if scope["method"] not in ("GET", "HEAD"):
            status, body, kind = 405, b"only GET\n", b"text/plain"
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
