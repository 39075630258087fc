"""A lab as its people see it: objects over REST, exporters and shells as real processes.

The objects are made directly, because that takes milliseconds where ``jmp admin`` takes
seconds; that ``jmp admin`` makes the same ones is a test of its own.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import yaml

from support.real_service import BIN, MOCK, Service, eventually

T = TypeVar("T")

GROUP = "/apis/jumpstarter.dev/v1alpha1"
START_SECONDS_MAX = 180.0
MERGE = "application/merge-patch+json"


class Refusal(Exception):
    """The API server said no."""

    def __init__(self, status: int, answer: dict[str, Any]) -> None:
        super().__init__(f"{status}: {answer.get('message')}")
        self.status = status


class Watch:
    """The lines of an open watch."""

    def __init__(
        self, connection: http.client.HTTPSConnection, response: http.client.HTTPResponse
    ) -> None:
        self._connection = connection
        self._response = response
        assert connection.sock is not None
        # A watch may say nothing for long; whoever reads it is ended by ``close``.
        self._socket = connection.sock
        self._socket.settimeout(None)
        self._closed = False

    def __iter__(self) -> Iterator[bytes]:
        with contextlib.closing(self._connection), contextlib.closing(self._response):
            while not self._closed:
                try:
                    line = self._response.readline()
                except (OSError, ValueError, http.client.HTTPException):
                    return
                if not line:
                    return
                yield line

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


class Lab:
    """A running service, its objects, and the programs people use with it."""

    def __init__(self, service: Service) -> None:
        self.service = service

    # Objects

    def request(self, method: str, path: str, body: object = None, **query: str) -> Any:
        connection, headers = self._connect()
        with contextlib.closing(connection):
            headers["Content-Type"] = MERGE if method == "PATCH" else "application/json"
            target = f"{path}?{urlencode(query)}" if query else path
            payload = None if body is None else json.dumps(body)
            connection.request(method, target, body=payload, headers=headers)
            response = connection.getresponse()
            answer = json.loads(response.read() or b"{}")
            if response.status >= 400:
                raise Refusal(response.status, answer)
            return answer

    def _connect(self) -> tuple[http.client.HTTPSConnection, dict[str, str]]:
        config = yaml.safe_load((self.service.data / "kubeconfig").read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        parts = urlsplit(cluster["server"])
        connection = http.client.HTTPSConnection(
            str(parts.hostname),
            parts.port,
            timeout=60,
            context=ssl.create_default_context(cadata=authority),
        )
        return connection, {"Authorization": f"Bearer {user['token']}"}

    def watch(self, path: str) -> Watch:
        """Changes as the API server tells them, one line each, until closed."""
        connection, headers = self._connect()
        connection.request("GET", f"{path}?watch=true&resourceVersion=0", headers=headers)
        return Watch(connection, connection.getresponse())

    def get(self, plural: str, name: str = "", namespace: str = "default") -> dict[str, Any]:
        found: dict[str, Any] = self.request("GET", _path(plural, namespace, name))
        return found

    def create(
        self,
        plural: str,
        name: str,
        *,
        namespace: str = "default",
        labels: dict[str, str] | None = None,
        **content: object,
    ) -> dict[str, Any]:
        kinds = {"clients": "Client", "exporters": "Exporter", "leases": "Lease"}
        document = {
            "apiVersion": "jumpstarter.dev/v1alpha1",
            "kind": kinds.get(plural, "ExporterAccessPolicy"),
            "metadata": {"name": name, "labels": labels or {}},
            **content,
        }
        made: dict[str, Any] = self.request("POST", _path(plural, namespace), document)
        return made

    def patch(
        self, plural: str, name: str, body: object, *, namespace: str = "default", sub: str = ""
    ) -> None:
        self.request("PATCH", _path(plural, namespace, f"{name}/{sub}" if sub else name), body)

    def delete(self, plural: str, name: str, namespace: str = "default") -> None:
        self.request("DELETE", _path(plural, namespace, name))

    def events(self, name: str, namespace: str = "default") -> list[str]:
        """Reasons of what happened to an object."""
        found = self.request(
            "GET",
            f"/api/v1/namespaces/{namespace}/events",
            fieldSelector=f"involvedObject.name={name}",
        )
        return [event["reason"] for event in found["items"]]

    def status(self, exporter: str, namespace: str = "default") -> str:
        """What an exporter says it is doing."""
        found = self.get("exporters", exporter, namespace).get("status", {})
        return str(found.get("exporterStatus", ""))

    def condition(self, plural: str, name: str, type: str) -> dict[str, Any]:
        found = self.get(plural, name).get("status", {}).get("conditions", [])
        return next((item for item in found if item["type"] == type), {})

    def open_leases(self, client: str) -> list[dict[str, Any]]:
        leases = self.get("leases")["items"]
        return [
            lease
            for lease in leases
            if lease["spec"]["clientRef"]["name"] == client and not lease["status"]["ended"]
        ]

    # Configs

    def client(
        self, name: str, *, labels: dict[str, str] | None = None, namespace: str = "default"
    ) -> Path:
        """A new client's config file."""
        self.create("clients", name, namespace=namespace, labels=labels)
        config = self._config("ClientConfig", "clients", name, namespace)
        config["drivers"] = {"allow": [], "unsafe": True}
        return self._write(f"client-{namespace}-{name}", config)

    def exporter(
        self,
        name: str,
        labels: dict[str, str],
        *,
        namespace: str = "default",
        export: dict[str, Any] | None = None,
        **config: object,
    ) -> Path:
        """A new exporter's config file."""
        self.create("exporters", name, namespace=namespace, labels=labels)
        content = self._config("ExporterConfig", "exporters", name, namespace)
        content["export"] = export or MOCK
        return self._write(f"exporter-{namespace}-{name}", {**content, **config})

    def token(self, plural: str, name: str, namespace: str = "default") -> str:
        """The token in the Secret of a client or exporter, once it is there."""
        path = f"/api/v1/namespaces/{namespace}/secrets/{name}-{plural.removesuffix('s')}"
        found: list[str] = []

        def look() -> bool:
            with contextlib.suppress(Refusal):
                data = self.request("GET", path)["data"]["token"]
                found.append(base64.b64decode(data).decode())
            return bool(found)

        eventually(look, what=f"a token for {name}")
        return found[0]

    def _config(self, kind: str, plural: str, name: str, namespace: str) -> dict[str, Any]:
        endpoints = self.service.endpoints
        return {
            "apiVersion": "jumpstarter.dev/v1alpha1",
            "kind": kind,
            "metadata": {"namespace": namespace, "name": name},
            "endpoint": endpoints["controller"],
            "tls": {
                "ca": base64.b64encode(Path(endpoints["ca"]).read_bytes()).decode(),
                "insecure": False,
            },
            "token": self.token(plural, name, namespace),
        }

    def _write(self, stem: str, config: dict[str, Any]) -> Path:
        path = self.service.home / f"{stem}.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    # Programs

    @contextlib.contextmanager
    def running(self, *configs: Path) -> Iterator[list[subprocess.Popen[str]]]:
        """The real ``jmp run`` on each config, started together, until the block ends."""
        with contextlib.ExitStack() as stack:
            started = [
                stack.enter_context(self.service.exporter(config, wait=False)) for config in configs
            ]
            for config in configs:
                self.available(config)
            yield started

    def available(self, config: Path) -> None:
        meta = yaml.safe_load(config.read_text())["metadata"]
        eventually(
            lambda: self.status(meta["name"], meta["namespace"]) == "Available",
            seconds=START_SECONDS_MAX,
            what=f"exporter {meta['name']} being available",
        )

    def jmp(
        self, client: Path, *arguments: str, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """``jmp`` with a client's config, which follows the subcommand's own words."""
        words = [word for word in arguments[:2] if not word.startswith("-")]
        if words[:1] == ["shell"]:
            words = words[:1]
        rest = arguments[len(words) :]
        return self.service.jmp(*words, "--client-config", str(client), *rest, **options)

    @contextlib.contextmanager
    def open_shell(
        self, client: Path, *arguments: str, wrapper: Sequence[str] = (), **environment: str
    ) -> Iterator[subprocess.Popen[str]]:
        """A ``jmp shell`` that goes on in the background, with pipes to its command.

        ``wrapper`` starts it.
        """
        process = subprocess.Popen(
            [*wrapper, str(BIN / "jmp"), "shell", "--client-config", str(client), *arguments],
            env={**self.service.environment, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """What the process printed up to and including a line with ``text``."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"it ended without saying {text!r}:\n{seen}")


def at_once(*calls: Callable[[], T]) -> list[T]:
    """Run the calls side by side and return what each returned."""
    with ThreadPoolExecutor(max_workers=max(1, len(calls))) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def warnings_in(output: str) -> list[str]:
    return [line for line in output.splitlines() if "WARNING" in line or "ERROR" in line]


def _path(plural: str, namespace: str, name: str = "") -> str:
    return f"{GROUP}/namespaces/{namespace}/{plural}{f'/{name}' if name else ''}"
