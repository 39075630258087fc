"""The API server without sockets, over a memory store."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from joserfc.jwk import ECKey

from bullpen.api.paths import encode
from bullpen.api.resources import RESOURCES
from bullpen.apiserver.authentication import ServiceAccountTokens, TokenTable
from bullpen.apiserver.http import Request, Response, parse_query
from bullpen.apiserver.recording import Caller
from bullpen.apiserver.service import ApiService
from bullpen.app import controllers
from bullpen.app.initial_objects import ensure_policy
from bullpen.app.lab import Lab, LabSettings
from bullpen.app.sources import Sources
from bullpen.audit.events import AuditEvent
from bullpen.core.rbac.authorization import AUTHENTICATED, MASTERS, AccessIndex, User
from bullpen.core.rbac.bootstrap_policy import CLUSTER_ROLE_BINDINGS, VIEW_USER, starting_roles
from bullpen.identity.serviceaccounts import AccountTokens
from bullpen.kit.clock import VirtualClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.store.journaled import MemoryStore

ADMIN = User(name="admin", groups=(MASTERS, AUTHENTICATED))
VIEWER = User(name=VIEW_USER, groups=(AUTHENTICATED,))
NOBODY = User(name="nobody")
KEYS = (ECKey.generate_key("P-256", {"kid": "test"}, private=True),)
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
    def __init__(
        self,
        service: ApiService,
        user: User = ADMIN,
        *,
        recorder: Recorder,
        clock: VirtualClock,
    ) -> None:
        self.service = service
        self.user = user
        self.recorder = recorder
        self.clock = clock

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
        caller = Caller(user=user or self.user)
        return await collect(await self.service.respond(request, caller))


async def collect(response: Response) -> Answer:
    body = response.body
    whole = body if isinstance(body, bytes) else b"".join([piece async for piece in body])
    return Answer(response.status, whole, dict(response.headers), response.content_type)


class Recorder:
    """An audit sink that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    def record(self, event: AuditEvent) -> None:
        self.events.append(event)


async def made_api() -> Api:
    """A server with the default roles, which does not follow changes of roles."""
    registry, objects, clock = await _registry()
    access = AccessIndex()
    for role in starting_roles():
        access.observe_role(None, role)
    for binding in CLUSTER_ROLE_BINDINGS:
        access.observe_binding(None, binding)
    return _api(registry, objects, clock, access)


@contextlib.asynccontextmanager
async def running_api() -> AsyncIterator[Api]:
    """A server with the default roles, which follows changes of roles and bindings."""
    registry, objects, clock = await _registry()
    await ensure_policy(objects)
    sources = Sources(clock=clock, ids=RandomIds(random.Random(3)), chance=random.Random(3))
    lab = Lab(objects, LabSettings(endpoint="", ca_pem=""), sources)
    access = lab.access_index
    async with lab.running((controllers.cluster_roles,)):
        yield _api(registry, objects, clock, access)


async def _registry() -> tuple[Registry, RegistryObjects, VirtualClock]:
    clock = VirtualClock()
    registry = Registry(MemoryStore(), clock=clock, ids=RandomIds(random.Random(1)))
    await registry.ensure_namespaces(("default", "team-a"))
    return registry, RegistryObjects(registry, manager="test"), clock


def _api(
    registry: Registry, objects: RegistryObjects, clock: VirtualClock, access: AccessIndex
) -> Api:
    tokens, recorder = AccountTokens(KEYS), Recorder()
    service = ApiService(
        registry,
        resources=RESOURCES,
        clock=clock,
        authenticators=(
            TokenTable({"secret": ADMIN, "view": VIEWER}),
            ServiceAccountTokens(tokens, objects, clock),
        ),
        version="test",
        access=access,
        tokens=tokens,
        audit=recorder,
        ids=RandomIds(random.Random(2)),
    )
    return Api(service, recorder=recorder, clock=clock)
