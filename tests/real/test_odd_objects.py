"""No object that passed admission can stop the service.

Every field of every kind at its extremes, then ``kill -9`` and a restart.

``EXTREMES=each`` restarts the service after every single object instead of after all of a kind;
that takes about half an hour.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from bullpen.api.resource import Resource
from support.extremes import Extreme, extremes, resources
from support.real_service import Service, eventually, free_port_base

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

ONE_BY_ONE = os.environ.get("EXTREMES") == "each"
DEFECTS = (
    "object cannot be processed",
    "object cannot be read",
    "pass failed",
    "part failed",
    "watch failed",
    "not indexed",
    "Traceback",
)
"""What the log says when a part of the service met something it was not made for."""

CLASS = """
apiVersion: virtualtarget.jumpstarter.dev/v1alpha1
kind: VirtualTargetClass
metadata: {name: mock}
spec:
  provisioner: mock.jumpstarter.dev
  scheduling: {resources: {requests: {memory: 6Gi}}}
"""
"""Targets that count as large, so that few of the hundreds run at a time, as ``CONFIG`` does for
members of ExporterSets.
"""

CONFIG = "pools: {instancesMax: 3}\n"


class Api:
    """The embedded API server, over one connection, as the administrator."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._connection: http.client.HTTPSConnection | None = None

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        config = yaml.safe_load((self._service.data / "kubeconfig").read_text())
        if self._connection is None:
            server = urlsplit(config["clusters"][0]["cluster"]["server"])
            context = ssl.create_default_context(cafile=str(self._service.data / "pki" / "ca.crt"))
            self._connection = http.client.HTTPSConnection(
                server.hostname or "", server.port, context=context, timeout=60
            )
        headers = {
            "Authorization": f"Bearer {config['users'][0]['user']['token']}",
            "Content-Type": "application/json",
        }
        self._connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content.startswith(b"{") else content

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def path_of(resource: Resource, name: str = "") -> str:
    start = f"/apis/{resource.group}" if resource.group else "/api"
    space = "/namespaces/default" if resource.namespaced else ""
    return f"{start}/{resource.version}{space}/{resource.plural}" + (f"/{name}" if name else "")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    place = tmp_path_factory.mktemp("odd")
    config = place / "config.yaml"
    config.write_text(CONFIG)
    arguments = ("--port-base", str(free_port_base()), "--config", str(config))
    service = Service(place / "data", *arguments)
    service.start()
    service.create_client("alice")
    service.kubectl("apply", "-f", "-", input=CLASS)
    yield service
    if service.process is not None:
        service.stop(signal.SIGKILL)


def has_thousands(extreme: Extreme) -> bool:
    return (extreme.resource.kind, extreme.path) == ("VirtualTargetPool", ("spec", "replicas"))


def create(api: Api, extreme: Extreme, name: str) -> bool:
    """Whether the API server accepts it; it must never answer with an internal error."""
    resource, document = extreme.resource, extreme.document
    document.setdefault("metadata", {})["name"] = name
    status = document.get("status")
    code, answer = api("POST", path_of(resource), document)
    assert code < 500, f"{extreme}: {answer}"
    if code >= 300 or not (extreme.in_status and resource.status):
        return code < 300
    answer["status"] = status
    code, answer = api("PUT", f"{path_of(resource, name)}/status", answer)
    assert code < 500, f"{extreme}: {answer}"
    return code < 300


def restart(service: Service, api: Api) -> None:
    api.close()
    service.stop(signal.SIGKILL)
    service.start()


def test_every_kind_that_can_be_written_is_tried() -> None:
    for resource in resources():
        assert sum(1 for _ in extremes(resource)) > 5, resource.kind


@pytest.mark.parametrize("resource", resources(), ids=lambda resource: resource.kind)
def test_no_object_at_an_extreme_stops_the_service(service: Service, resource: Resource) -> None:
    begin = service.log.stat().st_size
    with contextlib.closing(Api(service)) as api:
        accepted = 0
        # A pool of thousands comes last: it is still growing when the service is killed, and
        # nothing else is tried beside what it makes.
        for number, extreme in enumerate(sorted(extremes(resource), key=has_thousands)):
            if create(api, extreme, f"odd-{resource.plural[:20]}-{number}"):
                accepted += 1
                if ONE_BY_ONE:
                    restart(service, api)
                    decides_about_leases(api, f"{resource.plural}-{number}")
        assert accepted, "nothing was accepted, so nothing was tried"
        restart(service, api)
        decides_about_leases(api, resource.plural)
        delete_all(api, resource)
    said = _since(service.log, begin)
    found = [line[:300] for line in said.splitlines() if any(text in line for text in DEFECTS)]
    assert not found, "\n".join(found[:20])


def delete_all(api: Api, resource: Resource) -> None:
    """Delete the odd ones: the next kind is not tried beside what this one still causes."""
    _, found = api("GET", path_of(resource))
    for item in found["items"]:
        name = item["metadata"]["name"]
        if name.startswith("odd-"):
            code, answer = api("DELETE", path_of(resource, name))
            assert code in (200, 202, 404), f"{name}: {answer}"


def decides_about_leases(api: Api, name: str) -> None:
    """The service is not only up: it still decides about a lease among the odd objects."""
    path, probe = "/apis/jumpstarter.dev/v1alpha1/namespaces/default/leases", f"probe-{name}"
    lease = {
        "apiVersion": "jumpstarter.dev/v1alpha1",
        "kind": "Lease",
        "metadata": {"name": probe},
        "spec": {
            "clientRef": {"name": "alice"},
            "selector": {"matchLabels": {"board": "there-is-none"}},
            "duration": "1h",
        },
    }
    code, answer = api("POST", path, lease)
    assert code in (201, 409), answer

    def decided() -> bool:
        _, found = api("GET", f"{path}/{probe}")
        return bool(found["status"].get("conditions"))

    eventually(decided, seconds=120, what=f"a decision about a lease after {name}")


def _since(log: Path, begin: int) -> str:
    with log.open("rb") as file:
        file.seek(begin)
        return file.read().decode(errors="replace")
