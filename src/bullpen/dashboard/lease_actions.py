"""Leases and claims from the pages: create, extend, transfer and release.

A person who is the client of a lease or claim acts through the services of clients, as ``jmp``
and ``bullpen claim`` do, with their quotas and policies. Other users write the object at the
API server, as kubectl does, and need the rights for it there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from bullpen.api.fields import Kind
from bullpen.api.kinds.client import GROUP_VERSION
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.lease import Lease
from bullpen.api.paths import Document, encode
from bullpen.api.resources import RESOURCES
from bullpen.apiserver.http import Request, Response, json_response
from bullpen.audit.events import Target
from bullpen.core.leases import lifecycle
from bullpen.dashboard.client_calls import ClientCalls
from bullpen.dashboard.object_requests import ObjectRequests
from bullpen.dashboard.people import Person
from bullpen.dashboard.recording import Recorder
from bullpen.errors import BadRequest
from bullpen.kit import durations, times
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.kit.selectors import parse_labels
from bullpen.registry.options import PatchType
from bullpen.services.claims import ClaimEdit
from bullpen.services.lease_requests import Edit, LeaseRequest, label_selector

DEFAULT_DURATION = "30m"


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """The form of a new lease."""

    namespace: str
    client: str
    selector: str = ""
    exporter: str = ""
    duration: str = DEFAULT_DURATION
    begin: str = ""
    """An RFC 3339 time; empty for as soon as possible."""


class Change(msgspec.Struct, forbid_unknown_fields=True):
    """The change of a lease or claim: its whole length, or its new client."""

    duration: str = ""
    client: str = ""


def decoded(body: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body cannot be read: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseActions:
    client_calls: ClientCalls
    object_requests: ObjectRequests
    recorder: Recorder
    clock: Clock
    ids: Ids

    async def create(self, request: Request, person: Person) -> Response:
        wanted: Wanted = decoded(request.body, Wanted)
        duration, begin = duration_of(wanted.duration), begin_of(wanted.begin)
        client = person.client(wanted.namespace, wanted.client)
        if client is not None:
            asked = LeaseRequest(
                selector=wanted.selector,
                exporter=wanted.exporter,
                duration=duration,
                begin=begin,
                tags={},
            )
            name = await self.client_calls.create_lease(person, client, asked)
            return answered(
                self.recorder, request, person, Lease, wanted.namespace, name, status=201
            )
        document = self._document(wanted, duration, begin)
        return await self.object_requests.respond(
            object_request(request, "POST", object_path(Lease, wanted.namespace), encode(document)),
            person,
        )

    def _document(self, wanted: Wanted, duration: timedelta, begin: datetime | None) -> Document:
        spec: Document = {
            "clientRef": {"name": wanted.client},
            "duration": durations.text(duration),
            "selector": selector_document(wanted.selector),
        }
        if begin is not None:
            spec["beginTime"] = times.text(begin)
        if wanted.exporter:
            spec["exporterRef"] = {"name": wanted.exporter}
        return {
            "apiVersion": GROUP_VERSION,
            "kind": Lease.kind,
            "metadata": {"name": self.ids.ordered(self.clock.now())},
            "spec": spec,
        }

    async def update(self, request: Request, person: Person, lease: Lease) -> Response:
        change = _change(request.body)
        namespace, name = lease.metadata.namespace, lease.metadata.name
        client = person.client(namespace, lifecycle.holder(lease))
        if client is None:
            return await self._patch(request, person, lease, _lease_spec(change))
        edit = Edit(duration=_duration_of(change), client=change.client or None)
        await self.client_calls.update_lease(person, client, name, edit)
        return answered(self.recorder, request, person, Lease, namespace, name)

    async def update_claim(self, request: Request, person: Person, claim: DeviceClaim) -> Response:
        change = _change(request.body)
        namespace, name = claim.metadata.namespace, claim.metadata.name
        client = person.client(namespace, claim.spec.client_ref.name)
        if client is None:
            return await self._patch(request, person, claim, _spec(change))
        edit = ClaimEdit(duration=_duration_of(change), client=change.client or None)
        await self.client_calls.update_claim(person, client, name, edit)
        return answered(self.recorder, request, person, DeviceClaim, namespace, name)

    async def release(self, request: Request, person: Person, lease: Lease) -> Response:
        namespace, name = lease.metadata.namespace, lease.metadata.name
        client = person.client(namespace, lifecycle.holder(lease))
        if client is None:
            return await self._patch(request, person, lease, {"release": True})
        await self.client_calls.release_lease(person, client, name)
        return answered(self.recorder, request, person, Lease, namespace, name)

    async def release_claim(self, request: Request, person: Person, claim: DeviceClaim) -> Response:
        namespace, name = claim.metadata.namespace, claim.metadata.name
        client = person.client(namespace, claim.spec.client_ref.name)
        if client is None:
            return await self._patch(request, person, claim, {"release": True})
        await self.client_calls.release_claim(person, client, name)
        return answered(self.recorder, request, person, DeviceClaim, namespace, name)

    async def _patch(
        self, request: Request, person: Person, found: Lease | DeviceClaim, spec: Document
    ) -> Response:
        path = f"{object_path(type(found), found.metadata.namespace)}/{found.metadata.name}"
        headers = {**request.headers, "content-type": PatchType.MERGE.value}
        patch = object_request(request, "PATCH", path, encode({"spec": spec}), headers)
        return await self.object_requests.respond(patch, person)


def answered(
    recorder: Recorder,
    request: Request,
    person: Person,
    kind: type[Kind],
    namespace: str,
    name: str,
    *,
    status: int = 200,
) -> Response:
    """The response to what a person did as a client, which is recorded here."""
    response = json_response({"metadata": {"name": name, "namespace": namespace}}, status=status)
    recorder.record(request, person, response, target=target_of(kind, namespace, name))
    return response


def selector_document(text: str) -> Document:
    """A selector of labels as objects have it. Raises ``BadRequest``."""
    selector = label_selector(parse_labels(text))
    return {
        "matchLabels": dict(selector.match_labels),
        "matchExpressions": [
            {"key": each.key, "operator": each.operator, "values": list(each.values)}
            for each in selector.match_expressions
        ],
    }


def target_of(kind: type[Kind], namespace: str, name: str) -> Target:
    """A lease or claim, in the terms of the audit log."""
    resource = RESOURCES.of(kind)
    return Target(
        resource=resource.plural,
        group=resource.group,
        version=resource.version,
        namespace=namespace,
        name=name,
    )


def _change(body: bytes) -> Change:
    change: Change = decoded(body, Change)
    if bool(change.duration) == bool(change.client):
        raise BadRequest("give either a duration or a client")
    return change


def _duration_of(change: Change) -> timedelta | None:
    return duration_of(change.duration) if change.duration else None


def _spec(change: Change) -> Document:
    duration = _duration_of(change)
    if duration is not None:
        return {"duration": durations.text(duration)}
    return {"clientRef": {"name": change.client}}


def _lease_spec(change: Change) -> Document:
    """An end time would win over the duration, so it is removed."""
    return {**_spec(change), "endTime": None} if change.duration else _spec(change)


def begin_of(text: str) -> datetime | None:
    """The begin time of a form; None if it is empty."""
    if not text:
        return None
    try:
        return times.parse(text)
    except ValueError as error:
        raise BadRequest(f"begin: {error}") from None


def duration_of(text: str) -> timedelta:
    """The length of a lease or claim. Raises ``BadRequest``."""
    try:
        found = durations.parse(text)
    except ValueError as error:
        raise BadRequest(f"duration: {error}") from None
    if found <= timedelta(0):
        raise BadRequest("a lease needs a duration above zero, such as 30m")
    return found


def object_path(kind: type[Kind], namespace: str) -> str:
    if not namespace or "/" in namespace:
        raise BadRequest(f"say in which namespace the {kind.kind} is")
    return f"/apis/{kind.api_version}/namespaces/{namespace}/{RESOURCES.of(kind).plural}"


def object_request(
    request: Request,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str] | None = None,
) -> Request:
    """A request to the API server, in the course of one to the dashboard."""
    return Request(
        method=method,
        path=path,
        query={},
        headers=headers or {**request.headers, "content-type": "application/json"},
        body=body,
        source=request.source,
    )
