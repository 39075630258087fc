"""ControllerService: exporters register and listen, clients dial, and the older lease calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc
from jumpstarter_protocol import jumpstarter_pb2, jumpstarter_pb2_grpc

from bullpen.api.exporter import Exporter
from bullpen.api.lease import Lease
from bullpen.controllers.views import Views
from bullpen.errors import Forbidden
from bullpen.identity.subjects import Role
from bullpen.kit.selectors import EVERYTHING, Operator, Requirement, Selector, requirement
from bullpen.services.callers import Callers
from bullpen.services.dialing import Switchboard
from bullpen.services.exporters import Exporters
from bullpen.services.grpc import convert
from bullpen.services.grpc.errors import answered, streamed
from bullpen.services.grpc.metadata import claim
from bullpen.services.leases import Leases
from bullpen.services.wishes import Wish

_OPERATORS = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.DOES_NOT_EXIST,
}


class ControllerServicer(jumpstarter_pb2_grpc.ControllerServiceServicer):
    def __init__(
        self,
        callers: Callers,
        views: Views,
        *,
        exporters: Exporters,
        leases: Leases,
        switchboard: Switchboard,
    ) -> None:
        self._callers = callers
        self._views = views
        self._exporters = exporters
        self._leases = leases
        self._switchboard = switchboard

    @answered()
    async def Register(self, request: Any, context: Any) -> Any:  # noqa: N802
        exporter = await self._exporter(context)
        uid = await self._exporters.register(
            exporter, labels=dict(request.labels), devices=convert.devices(request.reports)
        )
        return jumpstarter_pb2.RegisterResponse(uuid=uid)

    @answered()
    async def Unregister(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._exporters.unregister(await self._exporter(context), reason=request.reason)
        return jumpstarter_pb2.UnregisterResponse()

    @answered()
    async def ReportStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        exporter = await self._exporter(context)
        value = convert.status_value(request.status)
        await self._exporters.report(exporter, value=value, message=request.message)
        held = exporter.status.lease_ref
        if request.release_lease and held is not None:
            await self._leases.release_as_exporter(exporter, held.name)
        return jumpstarter_pb2.ReportStatusResponse()

    @streamed
    async def Status(self, request: Any, context: Any) -> AsyncGenerator[Any, None]:  # noqa: N802
        exporter = await self._exporter(context)
        async with aclosing(self._exporters.status(exporter)) as notices:
            async for notice in notices:
                if notice.leased:
                    yield jumpstarter_pb2.StatusResponse(
                        leased=True, lease_name=notice.lease, client_name=notice.client
                    )
                else:
                    yield jumpstarter_pb2.StatusResponse(leased=False)

    @streamed
    async def Listen(self, request: Any, context: Any) -> AsyncGenerator[Any, None]:  # noqa: N802
        exporter = await self._exporter(context)
        self._exporters.listens(exporter, request.lease_name)
        async with aclosing(self._switchboard.listen(exporter, request.lease_name)) as calls:
            async for call in calls:
                yield jumpstarter_pb2.ListenResponse(
                    router_endpoint=call.endpoint, router_token=call.token
                )

    @answered()
    async def Dial(self, request: Any, context: Any) -> Any:  # noqa: N802
        client = await self._callers.client(claim(context))
        call = await self._switchboard.dial(client, request.lease_name)
        return jumpstarter_pb2.DialResponse(router_endpoint=call.endpoint, router_token=call.token)

    @answered()
    async def GetLease(self, request: Any, context: Any) -> Any:  # noqa: N802
        client = await self._callers.client(claim(context))
        lease = await self._leases.get(client.metadata.namespace, request.name)
        if lease.spec.client_ref.name != client.metadata.name:
            raise Forbidden(f"permission denied: lease {request.name} belongs to another client")
        return convert.legacy_lease(lease, self._exporter_uid(lease))

    def _exporter_uid(self, lease: Lease) -> str:
        held = lease.status.exporter_ref
        exporter = held and self._views.exporters.get(lease.metadata.namespace, held.name)
        return exporter.metadata.uid if exporter else ""

    @answered()
    async def RequestLease(self, request: Any, context: Any) -> Any:  # noqa: N802
        client = await self._callers.client(claim(context))
        wish = Wish(
            selector=str(_selector(request.selector)),
            duration=convert.span_of(request, "duration"),
            tags={},
        )
        lease = await self._leases.create(client, wish)
        return jumpstarter_pb2.RequestLeaseResponse(name=lease.metadata.name)

    @answered()
    async def ReleaseLease(self, request: Any, context: Any) -> Any:  # noqa: N802
        who = claim(context)
        if who.role is Role.EXPORTER:
            exporter = await self._callers.exporter(who)
            await self._leases.release_as_exporter(exporter, request.name)
        else:
            client = await self._callers.client(who)
            await self._leases.release(client, request.name, idempotent=True)
        return jumpstarter_pb2.ReleaseLeaseResponse()

    @answered()
    async def ListLeases(self, request: Any, context: Any) -> Any:  # noqa: N802
        client = await self._callers.client(claim(context))
        found = self._leases.list(
            client.metadata.namespace, labels=EVERYTHING, tags=EVERYTHING, active=True
        )
        own = [
            lease.metadata.name
            for lease in found
            if lease.spec.client_ref.name == client.metadata.name
        ]
        return jumpstarter_pb2.ListLeasesResponse(names=own)

    async def AuditStream(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802
        # Nobody calls it, and its message was withdrawn from the protocol.
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "audit streams are not supported")

    async def _exporter(self, context: Any) -> Exporter:
        return await self._callers.exporter(claim(context))


def _selector(message: Any) -> Selector:
    found: list[Requirement] = [
        requirement(key, Operator.EQUALS, (value,)) for key, value in message.match_labels.items()
    ]
    found += [
        requirement(e.key, _OPERATORS[e.operator], tuple(e.values))
        for e in message.match_expressions
        if e.operator in _OPERATORS
    ]
    return Selector(tuple(sorted(found, key=lambda item: item.key)))
