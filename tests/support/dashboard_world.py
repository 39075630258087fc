"""The dashboard without sockets, over a lab in memory and under virtual time."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from bullpen.api.kinds.client import Client
from bullpen.api.kinds.exporter import Exporter, ExporterStatus
from bullpen.api.kinds.lease import Lease
from bullpen.api.meta import Condition, ConditionStatus, ObjectMeta
from bullpen.api.paths import encode
from bullpen.api.resources import RESOURCES
from bullpen.apiserver.authentication import TokenTable
from bullpen.apiserver.http import Request, Response, parse_query
from bullpen.apiserver.service import ApiService
from bullpen.app import controllers
from bullpen.app.dashboard import DashboardParts, Shown, front_door
from bullpen.app.initial_objects import ensure_policy
from bullpen.app.lab import Lab, LabSettings
from bullpen.app.services import Services
from bullpen.app.sources import Sources
from bullpen.controllers.exporters.credentials import subject_of
from bullpen.core.rbac.authorization import AUTHENTICATED, MASTERS, User
from bullpen.core.rbac.bootstrap_policy import VIEW_USER
from bullpen.core.targets.backends import HostLoad
from bullpen.dashboard.audit_trail import AuditTrail
from bullpen.dashboard.front_door import FrontDoor
from bullpen.dashboard.own_machine import OwnMachine
from bullpen.dashboard.sessions import Sessions
from bullpen.errors import LabError
from bullpen.identity import subjects
from bullpen.identity.subjects import Role
from bullpen.kit.clock import VirtualClock
from bullpen.kit.ids import RandomIds
from bullpen.placements.local.capacity import Limits, Usage
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.services.routing import Router
from bullpen.sim import virtual_time
from bullpen.sim.keys import cheap_keys
from bullpen.store.journaled import MemoryStore
from support.api_client import Answer, Recorder, collect

HOST = "lab:8080"
ORIGIN = f"https://{HOST}"
API = "/dashboard/api/"
ADMIN_TOKEN, VIEW_TOKEN, STRANGER_TOKEN = "admin-token", "view-token", "stranger-token"

Story = Callable[["DashboardWorld"], Coroutine[Any, Any, None]]


def client_token(name: str) -> str:
    """The token of one of the clients alice and bob."""
    return f"{name}-token"


class Browser:
    """Keeps the cookie and the CSRF token, as a page does."""

    def __init__(self, world: DashboardWorld) -> None:
        self._world = world
        self.cookie = self.csrf = ""

    async def sign_in(self, token: str) -> Answer:
        headers = {"authorization": f"Bearer {token}", "origin": ORIGIN}
        return self._kept(await self._world.request("POST", f"{API}session", headers=headers))

    async def open_link(self, secret: str) -> Answer:
        headers = {"x-bullpen-link": secret, "origin": ORIGIN}
        return self._kept(await self._world.request("POST", f"{API}session", headers=headers))

    def _kept(self, answer: Answer) -> Answer:
        if answer.status == 201:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
            self.csrf = answer.document["csrf"]
        return answer

    async def call(
        self, method: str, path: str, body: object = None, **headers: str | None
    ) -> Answer:
        """A request as a page sends it; a header given as None is left out."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {"cookie": self.cookie, "x-bullpen-csrf": self.csrf, "origin": ORIGIN, **given}
        kept = {name: value for name, value in sent.items() if value is not None}
        return await self._world.request(method, f"{API}{path}", body, headers=kept)

    @contextlib.asynccontextmanager
    async def stream(self, last_event_id: str = "") -> AsyncIterator[Events]:
        headers = {"cookie": self.cookie, "last-event-id": last_event_id}
        response = await self._world.respond("GET", f"{API}stream", headers=headers)
        assert not isinstance(response.body, bytes), response.body
        events = Events(response.body)
        async with contextlib.aclosing(response.body):  # type: ignore[type-var]
            yield events


class Events:
    """Server-sent events, as a browser reads them."""

    def __init__(self, body: AsyncIterator[bytes]) -> None:
        self._body = body
        self.last_id = ""

    async def next(self) -> tuple[str, Any]:
        """Kind and data of the next event; comments are skipped."""
        async for chunk in self._body:
            fields = dict(line.split(": ", 1) for line in chunk.decode().strip().split("\n"))
            if "event" in fields:
                self.last_id = fields.get("id", self.last_id)
                return fields["event"], msgspec.json.decode(fields["data"])
        return "end", None


class DashboardWorld:
    front: FrontDoor
    logs = Path("/nonexistent")
    """The directory with the logs of targets."""

    sessions: Sessions
    lab: Lab

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.sources = Sources(
            clock=self.clock, ids=RandomIds(random.Random(7)), chance=random.Random(7)
        )
        self.registry = Registry(MemoryStore(), clock=self.clock, ids=self.sources.ids)
        self.objects = RegistryObjects(self.registry, manager="bullpen")
        self.audit = Recorder()
        self.users = {
            ADMIN_TOKEN: User(name="admin", groups=(MASTERS, AUTHENTICATED)),
            VIEW_TOKEN: User(name=VIEW_USER, groups=(AUTHENTICATED,)),
            STRANGER_TOKEN: User(name="stranger", groups=(AUTHENTICATED,)),
        }

    def run(self, story: Story) -> None:
        async def served() -> None:
            await self._prepare()
            async with self.service():
                await story(self)

        virtual_time.run(self.clock, served())

    def log_of(self, key: tuple[str, str]) -> Path:
        return self.logs / "-".join(key)

    async def _prepare(self) -> None:
        await self.registry.ensure_namespaces(("default", "other"))
        await ensure_policy(self.objects)
        for name in ("alice", "bob"):
            made = await self.objects.create(
                Client(metadata=ObjectMeta(name=name, namespace="default"))
            )
            subject = subject_of(Role.CLIENT, made)
            self.users[client_token(name)] = User(
                name=f"{subjects.PREFIX}{subject}", groups=subjects.groups(subject)
            )

    @contextlib.asynccontextmanager
    async def service(self) -> AsyncIterator[None]:
        lab = Lab(
            self.objects,
            LabSettings(endpoint="lab:8082", ca_pem="PEM"),
            self.sources,
            keys=cheap_keys(self.clock),
        )
        services = Services.of(lab)
        trail = AuditTrail(None, self.clock)
        parts = DashboardParts(Shown.of(lab), audit_trail=trail)
        access = lab.access_index
        self.authenticators = (TokenTable(self.users),)
        api = ApiService(
            self.registry,
            resources=RESOURCES,
            clock=self.clock,
            authenticators=self.authenticators,
            version="1",
            access=access,
            audit=self.audit,
        )
        lab.routers.set_local(Router("router:1", lambda: 0))
        self.lab, self.sessions = lab, parts.sessions
        own = OwnMachine(
            log=self.log_of,
            capacity=lambda: (
                Usage(instances=2, memory_bytes=256 << 20, cpus=2),
                Limits(instances=500, memory_bytes=4 << 30, cpus=16),
            ),
            load=lambda: HostLoad(cpu=35, memory=60),
        )
        self.front = front_door(parts, lab, api, services, self.authenticators, self.audit, own)
        running = (
            controllers.exporters,
            controllers.leases,
            controllers.claims,
            controllers.cluster_roles,
        )
        async with lab.running(running):
            yield

    async def request(
        self, method: str, path: str, body: object = None, *, headers: dict[str, str] | None = None
    ) -> Answer:
        return await collect(await self.respond(method, path, body, headers=headers))

    async def respond(
        self, method: str, path: str, body: object = None, *, headers: dict[str, str] | None = None
    ) -> Response:
        """As ``Asgi`` does it: the caller first, then the body."""
        path, _, query = path.partition("?")
        request = Request(
            method=method,
            path=path,
            query=parse_query(query.encode()),
            headers={"host": HOST, **(headers or {})},
            body=b"" if body is None else encode(body),
        )
        try:
            caller = await self.front.authenticate(request)
        except LabError as error:
            return self.front.refuse(request, error)
        return await self.front.respond(request, caller)

    async def browser(self, token: str) -> Browser:
        browser = Browser(self)
        answer = await browser.sign_in(token)
        assert answer.status == 201, answer.body
        return browser

    async def make_exporter(
        self,
        name: str = "e1",
        *,
        namespace: str = "default",
        online: bool = True,
        labels: Mapping[str, str] | None = None,
    ) -> Exporter:
        state = ConditionStatus.TRUE if online else ConditionStatus.FALSE
        now = self.clock.now()
        conditions = tuple(
            Condition(type=kind, status=state, reason="Test", message="", last_transition_time=now)
            for kind in ("Registered", "Online")
        )
        meta = ObjectMeta(name=name, namespace=namespace, labels=labels or {"board": "x"})
        made = await self.objects.create(Exporter(metadata=meta))
        status = ExporterStatus(conditions=conditions, last_seen=now)
        return await self.objects.update_status(replace(made, status=status))

    async def lease(self, name: str) -> Lease:
        return await self.objects.get(Lease, "default", name)
