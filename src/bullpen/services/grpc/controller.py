"""ControllerService: exporters register and listen, clients dial; also the older lease calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from jumpstarter_protocol import jumpstarter_pb2

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease
from bullpen.controllers.views import Views
from bullpen.errors import BadRequest, Forbidden
from bullpen.kit.selectors import EVERYTHING, Operator, Requirement, Selector, requirement
from bullpen.services.dialing import Switchboard
from bullpen.services.exporters import Exporters
from bullpen.services.grpc import convert
from bullpen.services.grpc.methods import Admits, method
from bullpen.services.lease_requests import LeaseRequest
from bullpen.services.leases import Leases
from bullpen.services.peers import Peer

_OPERATORS = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.DOES_NOT_EXIST,
}


class ControllerServicer:
    """The methods receive their caller and their request, see ``methods``."""

    def __init__(
        self,
        views: Views,
        *,
        exporters: Exporters,
        leases: Leases,
        switchboard: Switchboard,
    ) -> None:
        self._views = views
        self._exporters = exporters
        self._leases = leases
        self._switchboard = switchboard

    @method(Admits.EXPORTER)
    async def Register(self, exporter: Exporter, request: Any) -> Any:  # noqa: N802
        uid = await self._exporters.register(
            exporter, labels=dict(request.labels), devices=convert.devices(request.reports)
        )
        return jumpstarter_pb2.RegisterResponse(uuid=uid)

    @method(Admits.EXPORTER)
    async def Unregister(self, exporter: Exporter, request: Any) -> Any:  # noqa: N802
        await self._exporters.unregister(exporter, reason=request.reason)
        return jumpstarter_pb2.UnregisterResponse()

    @method(Admits.EXPORTER)
    async def ReportStatus(self, exporter: Exporter, request: Any) -> Any:  # noqa: N802
        value = convert.status_value(request.status)
        await self._exporters.report(exporter, value=value, message=request.message)
        held = exporter.status.lease_ref
        if request.release_lease and held is not None:
            await self._leases.release_as_exporter(exporter, held.name)
        return jumpstarter_pb2.ReportStatusResponse()

    @method(Admits.EXPORTER, watched=True)
    async def Status(  # noqa: N802
        self, exporter: Exporter, request: Any, peer: Peer
    ) -> AsyncGenerator[Any, None]:
        async with aclosing(self._exporters.status(exporter, peer)) as notices:
            async for notice in notices:
                if notice.leased:
                    yield jumpstarter_pb2.StatusResponse(
                        leased=True, lease_name=notice.lease, client_name=notice.client
                    )
                else:
                    yield jumpstarter_pb2.StatusResponse(leased=False)

    @method(Admits.EXPORTER)
    async def Listen(  # noqa: N802
        self, exporter: Exporter, request: Any
    ) -> AsyncGenerator[Any, None]:
        self._exporters.listens(exporter, request.lease_name)
        async with aclosing(self._switchboard.listen(exporter, request.lease_name)) as calls:
            async for call in calls:
                yield jumpstarter_pb2.ListenResponse(
                    router_endpoint=call.endpoint, router_token=call.token
                )

    @method(Admits.CLIENT)
    async def Dial(self, client: Client, request: Any) -> Any:  # noqa: N802
        call = await self._switchboard.dial(client, request.lease_name)
        return jumpstarter_pb2.DialResponse(router_endpoint=call.endpoint, router_token=call.token)

    @method(Admits.CLIENT)
    async def GetLease(self, client: Client, request: Any) -> Any:  # noqa: N802
        lease = await self._leases.get(client.metadata.namespace, request.name)
        if lease.spec.client_ref.name != client.metadata.name:
            raise Forbidden(f"permission denied: lease {request.name} belongs to another client")
        return convert.legacy_lease(lease, self._exporter_uid(lease))

    def _exporter_uid(self, lease: Lease) -> str:
        held = lease.status.exporter_ref
        exporter = held and self._views.exporters.get(lease.metadata.namespace, held.name)
        return exporter.metadata.uid if exporter else ""

    @method(Admits.CLIENT)
    async def RequestLease(self, client: Client, request: Any) -> Any:  # noqa: N802
        asked = LeaseRequest(
            selector=str(selector_of(request.selector)),
            duration=convert.span_of(request, "duration"),
            tags={},
        )
        lease = await self._leases.create(client, asked)
        return jumpstarter_pb2.RequestLeaseResponse(name=lease.metadata.name)

    @method(Admits.EITHER)
    async def ReleaseLease(self, caller: Client | Exporter, request: Any) -> Any:  # noqa: N802
        if isinstance(caller, Exporter):
            await self._leases.release_as_exporter(caller, request.name)
        else:
            await self._leases.release(caller, request.name, idempotent=True)
        return jumpstarter_pb2.ReleaseLeaseResponse()

    @method(Admits.CLIENT)
    async def ListLeases(self, client: Client, request: Any) -> Any:  # noqa: N802
        found = await self._leases.list(
            client.metadata.namespace, labels=EVERYTHING, tags=EVERYTHING, active=True
        )
        own = [
            lease.metadata.name
            for lease in found
            if lease.spec.client_ref.name == client.metadata.name
        ]
        return jumpstarter_pb2.ListLeasesResponse(names=own)

    def AuditStream(self) -> None:  # noqa: N802
        """Not supported: no program calls it, and its message was withdrawn from the protocol."""


def selector_of(message: Any) -> Selector:
    """A selector of the older lease calls; raises ``BadRequest`` for an unknown operator."""
    found: list[Requirement] = [
        requirement(key, Operator.EQUALS, (value,)) for key, value in message.match_labels.items()
    ]
    found += [
        requirement(e.key, _operator(e.operator), tuple(e.values))
        for e in message.match_expressions
    ]
    return Selector(tuple(sorted(found, key=lambda item: item.key)))


def _operator(name: str) -> Operator:
    """An unknown expression must not be ignored: without it the selector would match more."""
    found = _OPERATORS.get(name)
    if found is None:
        raise BadRequest(
            f"{name!r} is not an operator of match expressions; use {', '.join(_OPERATORS)}"
        )
    return found
