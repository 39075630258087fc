"""ClaimService of ``bullpen.v1``: claims, as ``bullpen claim`` requests them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from typing import Any

from bullpen.api import codec
from bullpen.api.claim_allocation import ClaimAllocation
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.deviceclaim import DeviceClaim, DeviceClaimSpec
from bullpen.core.claims.explanation import Explanation
from bullpen.protocol import claims_pb2
from bullpen.protocol.claim_documents import spec_document, spec_message
from bullpen.services.claims import ClaimEdit, Claims
from bullpen.services.grpc import convert
from bullpen.services.grpc.methods import Admits, method
from bullpen.services.grpc.resource_names import named, page_of, within

COLLECTION = "claims"


class ClaimServicer:
    """The methods receive their caller and their request, see ``methods``."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims

    @method(Admits.CLIENT)
    async def CreateClaim(self, client: Client, request: Any) -> Any:  # noqa: N802
        within(request.parent, client)
        spec = spec_of(request.spec, client)
        return claim_message(await self._claims.create(client, request.claim_id, spec))

    @method(Admits.CLIENT)
    async def GetClaim(self, client: Client, request: Any) -> Any:  # noqa: N802
        name = named(request.name, COLLECTION, client)
        return claim_message(await self._claims.get(client.metadata.namespace, name))

    @method(Admits.CLIENT)
    async def WatchClaim(  # noqa: N802
        self, client: Client, request: Any
    ) -> AsyncGenerator[Any, None]:
        name = named(request.name, COLLECTION, client)
        async with aclosing(self._claims.watch(client.metadata.namespace, name)) as states:
            async for claim in states:
                yield claim_message(claim)

    @method(Admits.CLIENT)
    async def ListClaims(self, client: Client, request: Any) -> Any:  # noqa: N802
        namespace = within(request.parent, client)
        found = self._claims.list(namespace, ended=request.show_ended)
        page, token = page_of(found, request, [claim.metadata.name for claim in found])
        return claims_pb2.ListClaimsResponse(
            claims=[claim_message(claim) for claim in page], next_page_token=token
        )

    @method(Admits.CLIENT)
    async def UpdateClaim(self, client: Client, request: Any) -> Any:  # noqa: N802
        name = named(request.name, COLLECTION, client)
        edit = ClaimEdit(
            duration=convert.span_of(request, "duration"),
            begin=convert.moment_of(request, "begin_time"),
            priority=request.priority if request.HasField("priority") else None,
            client=named(request.client, "clients", client) if request.client else None,
        )
        return claim_message(await self._claims.update(client, name, edit))

    @method(Admits.CLIENT)
    async def ReleaseClaim(self, client: Client, request: Any) -> Any:  # noqa: N802
        name = named(request.name, COLLECTION, client)
        return claim_message(await self._claims.release(client, name))

    @method(Admits.CLIENT)
    async def Schedule(self, client: Client, request: Any) -> Any:  # noqa: N802
        within(request.parent, client)
        spec = spec_of(request.spec, client)
        waited = convert.span_of(request, "waited") or timedelta(0)
        return schedule_message(await self._claims.schedule(client, spec, waited=waited))


def spec_of(message: Any, client: Client) -> DeviceClaimSpec:
    """The spec of a claim of this client. Raises ``BadRequest`` or ``Invalid``."""
    document = {**spec_document(message), "clientRef": {"name": client.metadata.name}}
    return codec.decode(DeviceClaimSpec, document)


def claim_message(claim: DeviceClaim) -> Any:
    """A DeviceClaim as clients read it."""
    meta, status = claim.metadata, claim.status
    message = claims_pb2.Claim(
        name=f"namespaces/{meta.namespace}/claims/{meta.name}",
        client=f"namespaces/{meta.namespace}/clients/{claim.spec.client_ref.name}",
        status=claims_pb2.ClaimStatus(
            ended=status.ended,
            members=[
                claims_pb2.Member(
                    request=member.request,
                    alternative=member.alternative,
                    device=member.device,
                    lease=f"namespaces/{meta.namespace}/leases/{member.lease_ref.name}"
                    if member.lease_ref
                    else "",
                )
                for member in status.members
            ],
            conditions=[
                claims_pb2.Condition(
                    type=condition.type,
                    status=condition.status,
                    reason=condition.reason,
                    message=condition.message,
                )
                for condition in status.conditions
            ],
        ),
    )
    if status.allocation is not None:
        message.status.allocation.CopyFrom(allocation_message(status.allocation))
    if status.end_time is not None:
        message.status.end_time.CopyFrom(convert.timestamp(status.end_time))
    message.spec.CopyFrom(spec_message(codec.encode(claim.spec), strict=False))
    return message


def allocation_message(allocation: ClaimAllocation) -> Any:
    """What the choice of devices was based on. JSON keeps every number of a config as it is."""
    return claims_pb2.Allocation(
        classes=[
            claims_pb2.AllocatedClass(
                name=found.name,
                generation=found.generation,
                requests=found.requests,
                config=json.dumps(found.config, ensure_ascii=False),
            )
            for found in allocation.classes
        ],
        inventory=[
            claims_pb2.AllocationSource(
                kind=source.kind, name=source.name, generation=source.generation
            )
            for source in allocation.inventory
        ],
    )


def schedule_message(found: Explanation) -> Any:
    message = claims_pb2.ScheduleResponse(
        verdict=found.answer.verdict.name.capitalize(),
        possible=found.possible,
        members=[
            claims_pb2.Member(request=member.request, device=member.device)
            for member in found.answer.members
        ],
        reasons=[str(reason) for reason in found.reasons],
        relaxation=found.relaxation,
        blockers=[str(blocker) for blocker in (*found.blockers, *found.kept)],
    )
    if found.starts is not None:
        message.starts.CopyFrom(convert.timestamp(found.starts))
    return message
