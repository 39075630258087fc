"""The API server without sockets, over a memory store."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from bullpen.api.document import encode
from bullpen.api.resources import RESOURCES
from bullpen.apiserver.auth import Role, TokenTable, User
from bullpen.apiserver.http import Request, Response, parse_query
from bullpen.apiserver.service import ApiService
from bullpen.kit.clock import VirtualClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.registry import Registry
from bullpen.store.memory import MemoryStore

ADMIN = User(name="admin", role=Role.ADMIN)
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str]
    content_type: str

    @property
    def document(self) -> Any:
        import msgspec

        return msgspec.json.decode(self.body)


class Api:
    def __init__(self, service: ApiService, user: User = ADMIN) -> None:
        self.service = service
        self.user = user

    async def call(
        self,
        method: str,
        target: str,
        body: object = None,
        *,
        content_type: str = JSON,
        accept: str = "",
        user: User | None = None,
    ) -> Answer:
        path, _, query = target.partition("?")
        data = body if isinstance(body, bytes) else b"" if body is None else encode(body)
        request = Request(
            method=method,
            path=path,
            query=parse_query(query.encode()),
            headers={"content-type": content_type, "accept": accept},
            body=data,
        )
        return await collect(await self.service.respond(request, user or self.user))


async def collect(response: Response) -> Answer:
    body = response.body
    whole = body if isinstance(body, bytes) else b"".join([piece async for piece in body])
    return Answer(response.status, whole, dict(response.headers), response.content_type)


async def made_api() -> Api:
    clock = VirtualClock()
    registry = Registry(MemoryStore(), clock=clock, ids=RandomIds(random.Random(1)))
    await registry.ensure_namespaces(("default",))
    service = ApiService(
        registry,
        resources=RESOURCES,
        clock=clock,
        authenticators=(TokenTable({"secret": ADMIN}),),
        version="test",
    )
    return Api(service)
