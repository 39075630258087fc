"""Leases from the pages: create, extend, transfer and release.

A person who is the lease's client acts through Jumpstarter's services, as ``jmp`` does, with
its quotas and policies. Anybody else writes the Lease at the API server, as kubectl does, and
needs the rights for it there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from bullpen.api.kinds.client import GROUP_VERSION
from bullpen.api.kinds.lease import Lease
from bullpen.api.paths import Document, encode
from bullpen.apiserver.http import Request, Response, json_response
from bullpen.audit.events import Target
from bullpen.core.leases import lifecycle
from bullpen.dashboard.object_requests import ObjectRequests
from bullpen.dashboard.people import Person
from bullpen.dashboard.recording import Recorder
from bullpen.errors import BadRequest
from bullpen.kit import durations
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.kit.selectors import parse_labels
from bullpen.registry.options import PatchType
from bullpen.services.lease_requests import Edit, LeaseRequest, label_selector
from bullpen.services.leases import Leases

DEFAULT_DURATION = "30m"


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """The form of a new lease."""

    namespace: str
    client: str
    selector: str = ""
    exporter: str = ""
    duration: str = DEFAULT_DURATION


class Change(msgspec.Struct, forbid_unknown_fields=True):
    """The change of a lease: its whole length, or its new client."""

    duration: str = ""
    client: str = ""


def decoded(body: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body cannot be read: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseActions:
    leases: Leases
    object_requests: ObjectRequests
    recorder: Recorder
    clock: Clock
    ids: Ids

    async def create(self, request: Request, person: Person) -> Response:
        wanted: Wanted = decoded(request.body, Wanted)
        duration = _duration(wanted.duration)
        client = person.client(wanted.namespace, wanted.client)
        if client is not None:
            asked = LeaseRequest(
                selector=wanted.selector, exporter=wanted.exporter, duration=duration, tags={}
            )
            created = await self.leases.create(client, asked)
            return self._answer(request, person, created, status=201)
        document = self._document(wanted, duration)
        return await self.object_requests.respond(
            _request(request, "POST", _path(wanted.namespace), encode(document)), person
        )

    def _document(self, wanted: Wanted, duration: timedelta) -> Document:
        selector = label_selector(parse_labels(wanted.selector))
        spec: Document = {
            "clientRef": {"name": wanted.client},
            "duration": durations.text(duration),
            "selector": {
                "matchLabels": dict(selector.match_labels),
                "matchExpressions": [
                    {"key": each.key, "operator": each.operator, "values": list(each.values)}
                    for each in selector.match_expressions
                ],
            },
        }
        if wanted.exporter:
            spec["exporterRef"] = {"name": wanted.exporter}
        return {
            "apiVersion": GROUP_VERSION,
            "kind": Lease.kind,
            "metadata": {"name": self.ids.ordered(self.clock.now())},
            "spec": spec,
        }

    async def update(self, request: Request, person: Person, lease: Lease) -> Response:
        change: Change = decoded(request.body, Change)
        if bool(change.duration) == bool(change.client):
            raise BadRequest("give either a duration or a client")
        namespace, name = lease.metadata.namespace, lease.metadata.name
        client = person.client(namespace, lifecycle.holder(lease))
        if client is not None:
            edit = Edit(
                duration=_duration(change.duration) if change.duration else None,
                client=change.client or None,
            )
            changed = await self.leases.update(client, name, edit)
            return self._answer(request, person, changed)
        spec: Document = {}
        if change.duration:
            spec["duration"] = durations.text(_duration(change.duration))
            spec["endTime"] = None
        else:
            spec["clientRef"] = {"name": change.client}
        return await self._patch(request, person, lease, spec)

    async def release(self, request: Request, person: Person, lease: Lease) -> Response:
        namespace, name = lease.metadata.namespace, lease.metadata.name
        client = person.client(namespace, lifecycle.holder(lease))
        if client is not None:
            await self.leases.release(client, name, idempotent=True)
            return self._answer(request, person, lease)
        return await self._patch(request, person, lease, {"release": True})

    async def _patch(
        self, request: Request, person: Person, lease: Lease, spec: Document
    ) -> Response:
        path = f"{_path(lease.metadata.namespace)}/{lease.metadata.name}"
        headers = {**request.headers, "content-type": PatchType.MERGE.value}
        patch = _request(request, "PATCH", path, encode({"spec": spec}), headers)
        return await self.object_requests.respond(patch, person)

    def _answer(
        self, request: Request, person: Person, lease: Lease, *, status: int = 200
    ) -> Response:
        """The response to what a person did as a client, which is recorded here."""
        meta = lease.metadata
        response = json_response(
            {"metadata": {"name": meta.name, "namespace": meta.namespace}}, status=status
        )
        target = lease_target(meta.namespace, meta.name)
        self.recorder.record(request, person, response, target=target)
        return response


def lease_target(namespace: str, name: str) -> Target:
    """A lease, in the terms of the audit log."""
    group, _, version = GROUP_VERSION.partition("/")
    return Target(resource="leases", group=group, version=version, namespace=namespace, name=name)


def _duration(text: str) -> timedelta:
    try:
        found = durations.parse(text)
    except ValueError as error:
        raise BadRequest(f"duration: {error}") from None
    if found <= timedelta(0):
        raise BadRequest("a lease needs a duration above zero, such as 30m")
    return found


def _path(namespace: str) -> str:
    if not namespace or "/" in namespace:
        raise BadRequest("say in which namespace the lease is")
    return f"/apis/{GROUP_VERSION}/namespaces/{namespace}/leases"


def _request(
    request: Request,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str] | None = None,
) -> Request:
    return Request(
        method=method,
        path=path,
        query={},
        headers=headers or {**request.headers, "content-type": "application/json"},
        body=body,
        source=request.source,
    )
