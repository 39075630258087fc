"""The form of a new claim: the classes to choose from, what it would get, and its creation."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from google.protobuf.json_format import MessageToDict

from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.deviceclass import GROUP_VERSION, DeviceClass
from bullpen.api.paths import Document, encode
from bullpen.apiserver.http import Request, Response, json_response
from bullpen.controllers.views import Views
from bullpen.dashboard.client_calls import ClientCalls
from bullpen.dashboard.lease_actions import (
    DEFAULT_DURATION,
    answered,
    begin_of,
    decoded,
    duration_of,
    object_path,
    object_request,
    selector_document,
)
from bullpen.dashboard.object_requests import ObjectRequests
from bullpen.dashboard.people import People, Person
from bullpen.dashboard.recording import Recorder
from bullpen.errors import BadRequest, Forbidden
from bullpen.kit import durations, times
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids

REQUESTS_MAX = 32
CLASSES_MAX = 1_000
"""Classes that are offered; any name may be typed."""


class WantedDevices(msgspec.Struct, forbid_unknown_fields=True):
    """One line of the form."""

    name: str
    device_class: str = msgspec.field(name="class")
    count: int = 1
    labels: str = ""


class WantedClaim(msgspec.Struct, forbid_unknown_fields=True):
    """The form."""

    namespace: str
    client: str
    requests: list[WantedDevices]
    name: str = ""
    same: str = ""
    """An attribute that all devices have the same value of; empty for none."""

    duration: str = DEFAULT_DURATION
    begin: str = ""
    """A time; empty for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimForm:
    views: Views
    people: People
    client_calls: ClientCalls
    object_requests: ObjectRequests
    recorder: Recorder
    clock: Clock
    ids: Ids

    async def classes(self, person: Person) -> Response:
        """The names of DeviceClasses, for people who can make claims."""
        names: list[str] = []
        if await self.people.acting_clients(person):
            names = sorted(each.metadata.name for each in self.views[DeviceClass].all())
        return json_response({"classes": names[:CLASSES_MAX]})

    async def preview(self, request: Request, person: Person) -> Response:
        """What the claim would get now, and if nothing, why and when."""
        wanted: WantedClaim = decoded(request.body, WantedClaim)
        client = self.views.clients.get(wanted.namespace, wanted.client)
        if client is None or not await self.people.may_act_as(
            person, wanted.namespace, wanted.client
        ):
            raise Forbidden(f"you may not act as client {wanted.client}")
        found = await self.client_calls.schedule(person, client, spec_of(wanted))
        return json_response(MessageToDict(found, always_print_fields_with_no_presence=True))

    async def create(self, request: Request, person: Person) -> Response:
        wanted: WantedClaim = decoded(request.body, WantedClaim)
        spec = spec_of(wanted)
        client = person.client(wanted.namespace, wanted.client)
        if client is not None:
            name = await self.client_calls.create_claim(person, client, wanted.name, spec)
            return answered(
                self.recorder, request, person, DeviceClaim, wanted.namespace, name, status=201
            )
        document = {
            "apiVersion": GROUP_VERSION,
            "kind": DeviceClaim.kind,
            "metadata": {"name": wanted.name or self.ids.ordered(self.clock.now())},
            "spec": {**spec, "clientRef": {"name": wanted.client}},
        }
        path = object_path(DeviceClaim, wanted.namespace)
        create = object_request(request, "POST", path, encode(document))
        return await self.object_requests.respond(create, person)


def spec_of(wanted: WantedClaim) -> Document:
    """The spec of the claim, without its client. Raises ``BadRequest``."""
    if not 1 <= len(wanted.requests) <= REQUESTS_MAX:
        raise BadRequest(f"a claim has between 1 and {REQUESTS_MAX} requests")
    spec: Document = {
        "duration": durations.text(duration_of(wanted.duration)),
        "requests": [_request(each) for each in wanted.requests],
    }
    if wanted.same:
        spec["constraints"] = [{"matchAttribute": wanted.same}]
    begin = begin_of(wanted.begin)
    if begin is not None:
        spec["beginTime"] = times.text(begin)
    return spec


def _request(wanted: WantedDevices) -> Document:
    if not wanted.device_class:
        raise BadRequest(f"say which class request {wanted.name} needs")
    exactly: Document = {"deviceClassName": wanted.device_class, "count": wanted.count}
    if wanted.labels:
        exactly["selectors"] = [{"labels": selector_document(wanted.labels)}]
    return {"name": wanted.name, "exactly": exactly}
