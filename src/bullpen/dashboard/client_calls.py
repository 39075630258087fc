"""What a person does as a client: leases, claims, and streams to the targets they hold.

Everything has the rules, quotas and policies of the client's own calls (``jmp``, ``bullpen
claim``).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from bullpen.api import codec
from bullpen.api.kinds.client import Client
from bullpen.api.kinds.deviceclaim import DeviceClaimSpec
from bullpen.api.paths import Document
from bullpen.dashboard.people import Person
from bullpen.services.claims import ClaimEdit, Claims
from bullpen.services.dialing import Call, Switchboard
from bullpen.services.grpc.claims import schedule_message
from bullpen.services.lease_requests import Edit, LeaseRequest
from bullpen.services.leases import Leases


class ClientCalls(Protocol):
    """Calls of a client that ``person`` is or, for ``schedule`` and ``dial``, may act as."""

    async def create_lease(self, person: Person, client: Client, wanted: LeaseRequest) -> str:
        """Its name."""

    async def update_lease(self, person: Person, client: Client, name: str, edit: Edit) -> None: ...

    async def release_lease(self, person: Person, client: Client, name: str) -> None:
        """Nothing happens if it has ended."""

    async def create_claim(self, person: Person, client: Client, name: str, spec: Document) -> str:
        """Its name, which is chosen if none is given; ``spec`` is that of a DeviceClaim."""

    async def update_claim(
        self, person: Person, client: Client, name: str, edit: ClaimEdit
    ) -> None: ...

    async def release_claim(self, person: Person, client: Client, name: str) -> None: ...

    async def schedule(self, person: Person, client: Client, spec: Document) -> Any:
        """What a claim would get now, as a ``ScheduleResponse``. Nothing is created."""

    async def dial(self, person: Person, client: Client, lease: str) -> Call:
        """A stream to the exporter of a lease that the client holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalClientCalls:
    """To the services of the same process, which need no token: the person is known."""

    leases: Leases
    claims: Claims
    switchboard: Switchboard

    async def create_lease(self, person: Person, client: Client, wanted: LeaseRequest) -> str:
        return (await self.leases.create(client, wanted)).metadata.name

    async def update_lease(self, person: Person, client: Client, name: str, edit: Edit) -> None:
        await self.leases.update(client, name, edit)

    async def release_lease(self, person: Person, client: Client, name: str) -> None:
        await self.leases.release(client, name, idempotent=True)

    async def create_claim(self, person: Person, client: Client, name: str, spec: Document) -> str:
        return (await self.claims.create(client, name, _decoded(client, spec))).metadata.name

    async def update_claim(
        self, person: Person, client: Client, name: str, edit: ClaimEdit
    ) -> None:
        await self.claims.update(client, name, edit)

    async def release_claim(self, person: Person, client: Client, name: str) -> None:
        await self.claims.release(client, name)

    async def schedule(self, person: Person, client: Client, spec: Document) -> Any:
        found = await self.claims.schedule(client, _decoded(client, spec), waited=timedelta(0))
        return schedule_message(found)

    async def dial(self, person: Person, client: Client, lease: str) -> Call:
        return await self.switchboard.dial(client, lease)


def _decoded(client: Client, spec: Document) -> DeviceClaimSpec:
    return codec.decode(DeviceClaimSpec, {**spec, "clientRef": {"name": client.metadata.name}})
