"""A client of a running service over its HTTP API.

Synchronous and small on purpose: a command starts, sends one or two requests, ends.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from bullpen import errors
from bullpen.api.paths import Document
from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES
from bullpen.cli.options import suggestion
from bullpen.errors import Cause

TIMEOUT_SECONDS = 30.0
PROBLEM_BYTES_MAX = 1_000
MERGE_PATCH = "application/merge-patch+json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


class Api:
    """One server, one credential."""

    def __init__(self, server: str, *, tls: ssl.SSLContext, authorization: str) -> None:
        parts = urlsplit(server)
        assert parts.hostname is not None
        self.server = server
        self._host, self._port = parts.hostname, parts.port or 443
        self._authorization = authorization
        self._tls = tls
        self._connection: http.client.HTTPSConnection | None = None

    @classmethod
    def from_data(cls, data: Path) -> Api:
        """The service that runs on this data directory."""
        path = data / "kubeconfig"
        if not path.exists():
            raise errors.Unreachable(
                f"{data} has no kubeconfig: no service was started with this data directory."
                " Run 'bullpen up', or name its data directory with --data or $BULLPEN_DATA"
            )
        return cls._of_service(path)

    @classmethod
    def from_kubeconfig(cls, path: Path) -> Api:
        """The current context of any kubeconfig, with certificates, tokens and plug-ins."""
        import asyncio

        from bullpen.cluster.kubeconfig import Surroundings, load
        from bullpen.kit.clock import SystemClock

        if not path.exists():
            raise errors.NotFound(f"the kubeconfig {path} does not exist")
        access = load(path, surroundings=Surroundings(clock=SystemClock(), environment=os.environ))
        authorization = asyncio.run(access.credentials.authorization())
        return cls(access.server, tls=access.tls, authorization=authorization)

    @classmethod
    def _of_service(cls, path: Path) -> Api:
        """The kubeconfig that the service writes, which is read without further modules."""
        from bullpen.api import yaml

        try:
            config = yaml.load(path.read_bytes())
            cluster = config["clusters"][0]["cluster"]
            token = config["users"][0]["user"]["token"]
            ca_pem = base64.b64decode(cluster["certificate-authority-data"]).decode()
            server = cluster["server"]
        except (OSError, KeyError, IndexError, TypeError, ValueError) as error:
            raise errors.Refused(f"{path} cannot be used as a kubeconfig: {error}") from None
        tls = ssl.create_default_context(cadata=ca_pem)
        return cls(server, tls=tls, authorization=f"Bearer {token}")

    def request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Any:
        """The parsed response; an error response is raised as our error."""
        response = self._send(method, path, query, body, content_type, accept)
        data = response.read()
        if response.status >= 400:
            raise _error(response.status, data)
        return json.loads(data) if data else None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def problem(self) -> str:
        """Why the service says that it is not ready; empty if it is."""
        response = self._send("GET", "/readyz", None, None, "application/json", "*/*")
        said = response.read()[:PROBLEM_BYTES_MAX].decode(errors="replace").strip()
        return "" if response.status < 400 else said or f"/readyz answers {response.status}"

    def lines(self, path: str, *, query: dict[str, str], accept: str) -> Iterator[Document]:
        """The events of a watch, until the server or the user ends it."""
        response = self._send("GET", path, query, None, "application/json", accept)
        if response.status >= 400:
            raise _error(response.status, response.read())
        while line := response.readline():
            yield json.loads(line)

    def _send(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None,
        body: object,
        content_type: str,
        accept: str,
    ) -> http.client.HTTPResponse:
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=TIMEOUT_SECONDS, context=self._tls
            )
        target = f"{path}?{urlencode(query)}" if query else path
        headers = {"Accept": accept, "User-Agent": "bullpen"}
        if self._authorization:
            headers["Authorization"] = self._authorization
        payload = None if body is None else json.dumps(body).encode()
        if payload is not None:
            headers["Content-Type"] = content_type
        try:
            self._connection.request(method, target, body=payload, headers=headers)
            return self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            self._connection = None
            raise errors.Unreachable(
                f"{self.server} does not answer ({error}); is 'bullpen up' running?"
            ) from None


def _error(status: int, data: bytes) -> errors.LabError:
    try:
        answer = json.loads(data)
        message, reason = str(answer["message"]), str(answer["reason"])
        causes = tuple(
            Cause(str(c.get("field", "")), str(c.get("message", "")), str(c.get("reason", "")))
            for c in (answer.get("details") or {}).get("causes") or ()
        )
    except (ValueError, KeyError, TypeError):
        return errors.LabError(
            f"the server answered {status}: {data[:200].decode(errors='replace')}"
        )
    return errors.of_reason(reason, message, causes) or errors.LabError(message)


def path_of(resource: Resource, namespace: str | None, name: str = "", sub: str = "") -> str:
    """The URL path of a collection, an object or a subresource."""
    root = f"/apis/{resource.group}" if resource.group else "/api"
    parts = [root, resource.version]
    if resource.namespaced and namespace is not None:
        parts += ["namespaces", namespace]
    parts += [part for part in (resource.plural, name, sub) if part]
    return "/".join(parts)


def resource_named(word: str) -> Resource:
    """The resource for ``word``: a plural, singular, kind or short name.

    ``leases`` alone is Jumpstarter's; Kubernetes' own is ``leases.coordination.k8s.io``.
    """
    wanted, _, group = word.lower().partition(".")
    for resource in RESOURCES:
        names = {resource.plural, resource.singular, resource.kind.lower(), *resource.short_names}
        if wanted in names and (not group or resource.group == group):
            return resource
    known = tuple(dict.fromkeys(resource.plural for resource in RESOURCES))
    hint = suggestion(wanted, known) or f"the known resources are {', '.join(known)}"
    raise errors.NotFound(f"there is no resource {word!r}; {hint}")
