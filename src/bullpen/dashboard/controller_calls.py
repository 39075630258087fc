"""Calls of clients to the controller of a cluster, with the token of the client.

A person who is a client has that token. A person who is not may dial as a client whose token
they can read: the Secret is then read with the person's own token, so that the API server
decides. This process has no token of any client by itself.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import msgspec
from jumpstarter_protocol import client_pb2, jumpstarter_pb2

from bullpen.api.kinds.client import Client
from bullpen.api.paths import Document
from bullpen.apiserver.http import Request
from bullpen.client.claims import Claims
from bullpen.client.config import ClientConfig
from bullpen.client.connection import CHANNEL_OPTIONS, Connection, our_errors
from bullpen.dashboard.object_requests import ObjectRequests
from bullpen.dashboard.people import Person
from bullpen.errors import Conflict, Forbidden, LabError, Rejected, Unavailable
from bullpen.identity import subjects
from bullpen.identity.subjects import Role
from bullpen.protocol import claims_pb2
from bullpen.protocol.claim_documents import spec_message
from bullpen.services.claims import ClaimEdit
from bullpen.services.dialing import Call
from bullpen.services.lease_requests import Edit, LeaseRequest

CALL_SECONDS_MAX = 30.0


class ControllerCalls:
    """``dashboard.client_calls`` over gRPC; one channel carries the calls of all people."""

    def __init__(self, endpoint: str, ca_pem: bytes, requests: ObjectRequests) -> None:
        self._endpoint = endpoint
        self._ca_pem = ca_pem
        self._requests = requests
        self._channel: grpc.aio.Channel | None = None

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        credentials = grpc.ssl_channel_credentials(self._ca_pem or None)
        self._channel = grpc.aio.secure_channel(
            self._endpoint, credentials, options=CHANNEL_OPTIONS
        )
        try:
            yield
        finally:
            await self._channel.close()

    async def verify(self, client: Client, token: str) -> None:
        """Raises ``Rejected`` unless the token is the current one of the client."""
        connection = self._connection(client, token)
        request = claims_pb2.ListClaimsRequest(parent=_parent(client), page_size=1)
        with self._errors():
            await connection.claims().ListClaims(
                request, metadata=connection.caller, timeout=CALL_SECONDS_MAX
            )

    async def create_lease(self, person: Person, client: Client, wanted: LeaseRequest) -> str:
        lease = client_pb2.Lease(
            selector=wanted.selector, exporter_name=wanted.exporter or None, tags=wanted.tags
        )
        if wanted.duration is not None:
            lease.duration.FromTimedelta(wanted.duration)
        if wanted.begin is not None:
            lease.begin_time.FromDatetime(wanted.begin)
        request = client_pb2.CreateLeaseRequest(parent=_parent(client), lease=lease)
        made = await self._call(person, client, "CreateLease", request)
        return str(made.name).rpartition("/")[2]

    async def update_lease(self, person: Person, client: Client, name: str, edit: Edit) -> None:
        lease = client_pb2.Lease(name=_lease(client, name))
        if edit.duration is not None:
            lease.duration.FromTimedelta(edit.duration)
        if edit.client is not None:
            lease.client = f"{_parent(client)}/clients/{edit.client}"
        await self._call(person, client, "UpdateLease", client_pb2.UpdateLeaseRequest(lease=lease))

    async def release_lease(self, person: Person, client: Client, name: str) -> None:
        request = client_pb2.DeleteLeaseRequest(name=_lease(client, name))
        with contextlib.suppress(Conflict):  # it was released already
            await self._call(person, client, "DeleteLease", request)

    async def create_claim(self, person: Person, client: Client, name: str, spec: Document) -> str:
        with self._errors():
            made = await self._claims(person, client).create(spec_message(spec), name=name)
        return str(made.name).rpartition("/")[2]

    async def update_claim(
        self, person: Person, client: Client, name: str, edit: ClaimEdit
    ) -> None:
        with self._errors():
            await self._claims(person, client).update(
                name, duration=edit.duration, client=edit.client or ""
            )

    async def release_claim(self, person: Person, client: Client, name: str) -> None:
        with self._errors():
            await self._claims(person, client).release(name)

    async def schedule(self, person: Person, client: Client, spec: Document) -> Any:
        connection = self._connection(client, await self._token(person, client))
        with self._errors():
            return await Claims(connection).schedule(spec_message(spec))

    async def dial(self, person: Person, client: Client, lease: str) -> Call:
        connection = self._connection(client, await self._token(person, client))
        request = jumpstarter_pb2.DialRequest(lease_name=lease)
        with self._errors():
            answer = await connection.controller.Dial(
                request, metadata=connection.caller, timeout=CALL_SECONDS_MAX
            )
        return Call(answer.router_endpoint, answer.router_token)

    async def _token(self, person: Person, client: Client) -> str:
        """The token with which a person acts as a client."""
        meta = client.metadata
        if person.client(meta.namespace, meta.name) is not None:
            return person.token
        return await self._read_token(person, client)

    async def _read_token(self, person: Person, client: Client) -> str:
        """The token of a client of others, if the person may read it."""
        meta = client.metadata
        name = subjects.secret_name(Role.CLIENT, meta.name)
        path = f"/api/v1/namespaces/{meta.namespace}/secrets/{name}"
        request = Request(method="GET", path=path, query={}, headers={})
        answer = await self._requests.respond(request, person)
        if answer.status != 200 or not isinstance(answer.body, bytes):
            raise Forbidden(f"you may not read the token of client {meta.name}")
        try:
            data: Any = msgspec.json.decode(answer.body)
            return base64.b64decode(data["data"]["token"]).decode("ascii")
        except (KeyError, TypeError, ValueError, msgspec.DecodeError):
            raise Unavailable(f"client {meta.name} has no token yet; try again shortly") from None

    def _claims(self, person: Person, client: Client) -> Claims:
        return Claims(self._connection(client, person.token))

    async def _call(self, person: Person, client: Client, method: str, request: Any) -> Any:
        connection = self._connection(client, person.token)
        with self._errors():
            return await getattr(connection.client, method)(
                request, metadata=connection.caller, timeout=CALL_SECONDS_MAX
            )

    def _connection(self, client: Client, token: str) -> Connection:
        assert self._channel is not None, "used outside of its context"
        config = ClientConfig(
            name=client.metadata.name,
            namespace=client.metadata.namespace,
            endpoint=self._endpoint,
            token=token,
            ca_pem=self._ca_pem,
        )
        return Connection(config, self._channel)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with our_errors(self._endpoint):
                yield
        except LabError as error:
            # The published client shows only refusals without a code of their own as they are.
            if type(error) is LabError:
                raise Rejected(error.message) from None
            raise


def _parent(client: Client) -> str:
    return f"namespaces/{client.metadata.namespace}"


def _lease(client: Client, name: str) -> str:
    return f"{_parent(client)}/leases/{name}"
