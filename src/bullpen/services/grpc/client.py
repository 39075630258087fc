"""ClientService: exporters and leases, as ``jmp`` requests them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.empty_pb2 import Empty
from jumpstarter_protocol import client_pb2

from bullpen.api.kinds.client import Client
from bullpen.controllers.exporters.credentials import CredentialReconciler
from bullpen.controllers.views import Views
from bullpen.core.matcher import Matcher, device_of
from bullpen.errors import NotFound
from bullpen.identity.subjects import Role
from bullpen.identity.tokens import expiry
from bullpen.kit.clock import Clock
from bullpen.kit.selectors import EVERYTHING, Selector, parse_labels
from bullpen.services.grpc import convert
from bullpen.services.grpc.methods import Admits, method
from bullpen.services.grpc.resource_names import named, page_of, within
from bullpen.services.lease_requests import Edit, LeaseRequest
from bullpen.services.leases import Leases


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSettings:
    """Which exporter labels clients see."""

    hidden: frozenset[str] = frozenset()
    deprecated: Mapping[str, str] = field(default_factory=dict)
    """Maps a label to the message that says what to use instead."""


class ClientServicer:
    """The methods receive their caller and their request, see ``methods``."""

    def __init__(
        self,
        views: Views,
        leases: Leases,
        credentials: CredentialReconciler,
        *,
        clock: Clock,
        labels: LabelSettings,
    ) -> None:
        self._views = views
        self._leases = leases
        self._credentials = credentials
        self._clock = clock
        self._labels = labels

    @method(Admits.CLIENT, human=True)
    async def GetExporter(self, client: Client, request: Any) -> Any:  # noqa: N802
        name = named(request.name, "exporters", client)
        exporter = self._views.exporters.get(client.metadata.namespace, name)
        if exporter is None:
            raise NotFound(f"there is no exporter {name}")
        return self._exporter(exporter, show_all=request.show_hidden_labels)

    @method(Admits.CLIENT, human=True)
    async def ListExporters(self, client: Client, request: Any) -> Any:  # noqa: N802
        namespace = within(request.parent, client)
        matcher = Matcher(selector=parse_labels(request.filter))
        found = sorted(
            (
                exporter
                for exporter in self._views.exporters.all(namespace)
                if matcher.matches(device_of(exporter))
            ),
            key=lambda exporter: exporter.metadata.name,
        )
        page, token = page_of(found, request, [e.metadata.name for e in found])
        return client_pb2.ListExportersResponse(
            exporters=[self._exporter(e, show_all=request.show_hidden_labels) for e in page],
            next_page_token=token,
        )

    def _exporter(self, exporter: Any, *, show_all: bool) -> Any:
        return convert.exporter_message(
            exporter,
            hidden=self._labels.hidden,
            deprecated=self._labels.deprecated,
            show_all=show_all,
        )

    @method(Admits.CLIENT, human=True)
    async def GetLease(self, client: Client, request: Any) -> Any:  # noqa: N802
        name = named(request.name, "leases", client)
        return self._lease(await self._leases.get(client.metadata.namespace, name))

    @method(Admits.CLIENT, human=True)
    async def ListLeases(self, client: Client, request: Any) -> Any:  # noqa: N802
        namespace = within(request.parent, client)
        active = request.only_active if request.HasField("only_active") else True
        found = await self._leases.list(
            namespace,
            labels=parse_labels(request.filter),
            tags=_optional(request.tag_filter),
            active=active,
        )
        page, token = page_of(found, request, [lease.metadata.name for lease in found])
        return client_pb2.ListLeasesResponse(
            leases=[self._lease(lease) for lease in page], next_page_token=token
        )

    @method(Admits.CLIENT, human=True)
    async def CreateLease(self, client: Client, request: Any) -> Any:  # noqa: N802
        within(request.parent, client)
        lease = request.lease
        asked = LeaseRequest(
            selector=lease.selector,
            exporter=lease.exporter_name,
            duration=convert.span_of(lease, "duration"),
            begin=convert.moment_of(lease, "begin_time"),
            end=convert.moment_of(lease, "end_time"),
            tags=dict(lease.tags),
            lease_id=request.lease_id,
            allow_disabled=lease.allow_disabled,
        )
        return self._lease(await self._leases.create(client, asked))

    @method(Admits.CLIENT, human=True)
    async def UpdateLease(self, client: Client, request: Any) -> Any:  # noqa: N802
        lease = request.lease
        name = named(lease.name, "leases", client)
        # The field mask is unreliable in clients, so every field that is present is applied.
        edit = Edit(
            duration=convert.span_of(lease, "duration"),
            begin=convert.moment_of(lease, "begin_time"),
            end=convert.moment_of(lease, "end_time"),
            client=named(lease.client, "clients", client) if lease.client else None,
        )
        return self._lease(await self._leases.update(client, name, edit))

    @method(Admits.CLIENT, human=True)
    async def DeleteLease(self, client: Client, request: Any) -> Any:  # noqa: N802
        await self._leases.release(client, named(request.name, "leases", client))
        return Empty()

    @method(Admits.CLIENT, human=True)
    async def RotateToken(self, client: Client, request: Any) -> Any:  # noqa: N802
        within(request.parent, client)
        token = await self._credentials.rotate(Role.CLIENT, client)
        response = client_pb2.RotateTokenResponse(token=token)
        if (when := expiry(token)) is not None:
            response.expiry.CopyFrom(convert.timestamp(when))
        return response

    def _lease(self, lease: Any) -> Any:
        return convert.lease_message(lease, now=self._clock.now())


def _optional(text: str) -> Selector:
    return parse_labels(text) if text else EVERYTHING
