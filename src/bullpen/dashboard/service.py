"""The dashboard without sockets: its pages, sign-in, streams and actions, by path.

Everything below ``/dashboard/api/`` needs a session, and every write its CSRF token. Requests
below ``/dashboard/api/objects/`` are passed to the API server on behalf of the person.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from urllib.parse import unquote

from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.lease import Lease
from bullpen.apiserver.http import Request, Response, json_response
from bullpen.apiserver.status import failure_response
from bullpen.controllers.views import Views
from bullpen.core.exporters.target_state import TargetState, target_state
from bullpen.core.matcher import Matcher, device_of
from bullpen.dashboard import audit_trail, protection, rows
from bullpen.dashboard.audit_trail import AuditTrail
from bullpen.dashboard.claim_form import ClaimForm
from bullpen.dashboard.client_calls import ClientCalls
from bullpen.dashboard.console_requests import ConsoleRequests
from bullpen.dashboard.consoles import Consoles
from bullpen.dashboard.ended_leases import EndedLeases
from bullpen.dashboard.feed import Feed, Reader
from bullpen.dashboard.history import History
from bullpen.dashboard.lease_actions import LeaseActions
from bullpen.dashboard.object_requests import ObjectRequests
from bullpen.dashboard.own_machine import OwnMachine
from bullpen.dashboard.pages import PREFIX, Pages
from bullpen.dashboard.people import People, Person, Scope
from bullpen.dashboard.recording import Recorder
from bullpen.dashboard.rows import CLAIM, LEASE, POOL, PROVIDER, TARGET, Row
from bullpen.dashboard.sessions import Sessions
from bullpen.dashboard.sign_in import ISSUERS, SignIn, session_of
from bullpen.dashboard.target_logs import TargetLogs
from bullpen.errors import Forbidden, LabError, MethodNotAllowed, NotFound, Unauthorized
from bullpen.identity.code_flow import CodeFlow
from bullpen.kit.clock import Clock
from bullpen.kit.selectors import parse_labels

log = logging.getLogger("bullpen.dashboard")

API = f"{PREFIX}api/"
OBJECTS = "objects/"
MATCHES_MAX = 100
"""Targets that are named as matching while a selector is typed; all are counted."""

RIGHTS_CHECKED = timedelta(seconds=5)
"""How long the rights of a stream's reader are taken as known."""

HISTORY_MAX = 20
"""Former leases that the page of a target shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the dashboard is made of."""

    views: Views
    ended_leases: EndedLeases
    object_requests: ObjectRequests
    people: People
    sessions: Sessions
    feed: Feed
    leases: LeaseActions
    claim_form: ClaimForm
    consoles: Consoles
    history: History
    audit_trail: AuditTrail
    target_logs: TargetLogs
    own_machine: OwnMachine | None
    client_calls: ClientCalls
    recorder: Recorder
    pages: Pages
    code_flow: CodeFlow | None
    """How people sign in at outside issuers."""

    clock: Clock
    version: str
    in_cluster: bool


class Dashboard:
    """One half of a front door: ``owns`` says which requests are its."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._sign_in = SignIn(
            people=parts.people,
            sessions=parts.sessions,
            recorder=parts.recorder,
            code_flow=parts.code_flow,
            version=parts.version,
            in_cluster=parts.in_cluster,
        )
        self._console_requests = ConsoleRequests(
            views=parts.views,
            people=parts.people,
            consoles=parts.consoles,
            client_calls=parts.client_calls,
            recorder=parts.recorder,
            still=self._sign_in.still,
            seen_lease=self._seen_lease,
        )

    def close(self) -> None:
        """End every stream, so that the server can stop at once."""
        self._parts.feed.close()
        self._parts.consoles.close()

    @staticmethod
    def owns(request: Request) -> bool:
        """Whether a request is for the dashboard: its paths, and a browser at the root."""
        if request.path == PREFIX.rstrip("/") or request.path.startswith(PREFIX):
            return True
        accept = request.headers.get("accept", "")
        return request.path == "/" and "text/html" in accept

    async def authenticate(self, request: Request) -> Person | None:
        """The person; None for pages, which are public. Raises ``Unauthorized``, ``Forbidden``."""
        if not request.path.startswith(API):
            return None
        rest = request.path.removeprefix(API)
        if request.method == "POST" and rest in ("session", "links"):
            return await self._sign_in.signing_in(request)
        try:
            return await self._sign_in.signed_in(request)
        except Unauthorized:
            if request.method == "GET" and rest == "session":
                return None  # every visitor may ask whether they are signed in
            raise

    def refuse(self, request: Request, error: LabError) -> Response:
        response = _protected(failure_response(error))
        self._parts.recorder.record(request, None, response, error=error)
        return response

    async def respond(self, request: Request, person: Person | None) -> Response:
        """Respond; every error becomes a Status, a bug a 500 with a logged traceback."""
        try:
            response = await self._dispatch(request, person)
        except LabError as error:
            response = failure_response(error)
            self._parts.recorder.record(request, person, response, error=error)
        except Exception:
            log.exception("request failed", extra={"key": request.path})
            response = failure_response(LabError("internal error; the server's log has the cause"))
        return _protected(response)

    async def _dispatch(self, request: Request, person: Person | None) -> Response:
        if request.path == f"{API}session" and person is None:
            return json_response(self._sign_in.nobody())
        if person is None and request.path.startswith(ISSUERS):
            return await self._sign_in.visit(request)
        if person is None:
            return self._page(request)
        rest = request.path.removeprefix(API)
        if rest.startswith(OBJECTS):
            return await self._object(request, person, rest.removeprefix(OBJECTS))
        names = [unquote(part) for part in rest.split("/")]
        if request.method == "GET":
            return await self._read(request, person, names)
        return await self._act(request, person, names)

    async def _read(self, request: Request, person: Person, names: list[str]) -> Response:
        match names:
            case ["session"]:
                return json_response(await self._sign_in.whoami(person, session_of(person)))
            case ["stream"]:
                return self._stream(request, person)
            case ["matches"]:
                return await self._matches(request, person)
            case ["history", namespace, kind, name]:
                return await self._history_of(request, person, namespace, f"{kind}/{name}")
            case ["machine"]:
                return await self._machine(person)
            case ["classes"]:
                return await self._parts.claim_form.classes(person)
            case ["timeline"]:
                return await self._timeline(request, person)
            case ["audit"]:
                return await self._audit(request, person)
            case ["targets", namespace, name, *part] if part in ([], ["log"]):
                return await self._target(person, namespace, name, log=bool(part))
            case ["consoles", namespace, name]:
                return await self._console_requests.show(request, person, (namespace, name))
            case ["consoles", namespace, name, "screen"]:
                return await self._console_requests.show_screen(request, person, (namespace, name))
            case _:
                raise NotFound(f"the dashboard has no GET {request.path}")

    async def _act(self, request: Request, person: Person, names: list[str]) -> Response:
        match request.method, names:
            case "POST", ["session"]:
                return await self._sign_in.start(request, person)
            case "POST", ["links"]:
                return self._sign_in.link(request, person)
            case "DELETE", ["session"]:
                return self._sign_in.sign_out(request, person)
            case "POST", ["consoles", namespace, name, *what]:
                return await self._console_requests.use(request, person, (namespace, name), what)
            case "POST", ["claims"]:
                return await self._parts.claim_form.create(request, person)
            case "POST", ["claims", "preview"]:
                return await self._parts.claim_form.preview(request, person)
            case "PATCH" | "DELETE", ["claims", namespace, name]:
                return await self._claim(request, person, namespace, name)
            case _, ["leases", *key]:
                return await self._lease(request, person, key)
            case _:
                raise NotFound(f"the dashboard has no {request.method} {request.path}")

    def _page(self, request: Request) -> Response:
        if request.method not in protection.SAFE_METHODS:
            raise MethodNotAllowed(f"{request.method} does not apply to pages")
        if not request.path.startswith(PREFIX):
            return Response(status=302, content_type="text/plain", headers=(("location", PREFIX),))
        return self._parts.pages.get(request.path.removeprefix(PREFIX))

    # Reading

    def _stream(self, request: Request, person: Person) -> Response:
        clock, people = self._parts.clock, self._parts.people
        known: tuple[timedelta, Scope] | None = None

        async def scope() -> Scope | None:
            nonlocal known
            if known is not None and clock.steady() - known[0] < RIGHTS_CHECKED:
                return known[1]
            current = await self._sign_in.still(person)
            if current is None:
                return None
            known = clock.steady(), await people.scope(current)
            return known[1]

        reader = Reader(scope=scope, last_event_id=request.headers.get("last-event-id", ""))
        return events(self._parts.feed.stream(reader))

    async def _matches(self, request: Request, person: Person) -> Response:
        """Which targets and pools a selector means, with the matcher that leases use."""
        namespace = request.query.get("namespace", "")
        scope = await self._parts.people.scope(person)
        matcher = Matcher(selector=parse_labels(request.query.get("selector", "")))
        found: list[Row] = []
        total = free = 0
        if scope.sees(TARGET, namespace):
            for exporter in self._parts.views.exporters.all(namespace):
                if not matcher.matches(device_of(exporter)):
                    continue
                total += 1
                state = target_state(exporter)
                free += state is TargetState.FREE
                if len(found) < MATCHES_MAX:
                    found.append({"name": exporter.metadata.name, "state": state})
        return json_response({"total": total, "free": free, "targets": found})

    async def _history_of(
        self, request: Request, person: Person, namespace: str, name: str
    ) -> Response:
        scope = await self._parts.people.scope(person)
        if not scope.sees(POOL, namespace):
            raise NotFound(f"there is no pool {name} in namespace {namespace}")
        month = request.query.get("range", "") == "month"
        return json_response(self._parts.history.of(namespace, name, month=month))

    async def _machine(self, person: Person) -> Response:
        """The machine of the service; null if it runs no instances."""
        scope = await self._parts.people.scope(person)
        if PROVIDER not in scope.everywhere:
            raise Forbidden("you may not see hosts: list providerconfigs in all namespaces")
        own = self._parts.own_machine
        return json_response({"machine": own.row() if own is not None else None})

    async def _audit(self, request: Request, person: Person) -> Response:
        if not await self._parts.people.may(person, audit_trail.RIGHT):
            raise Forbidden("you may not read the audit log: list events.audit.k8s.io")
        who, what = request.query.get("who", ""), request.query.get("what", "")
        trail = self._parts.audit_trail
        events = await trail.recent(who, what)
        return json_response({"events": events, "elsewhere": trail.elsewhere})

    async def _target(self, person: Person, namespace: str, name: str, *, log: bool) -> Response:
        parts = self._parts
        scope = await parts.people.scope(person)
        exporter = parts.views.exporters.get(namespace, name)
        if exporter is None or not scope.sees(TARGET, namespace):
            raise NotFound(f"there is no target {name} in namespace {namespace}")
        if log:
            return json_response({"text": await parts.target_logs.tail(person, (namespace, name))})
        history = await self._history(namespace, name) if scope.sees(LEASE, namespace) else []
        return json_response(rows.target_detail(exporter, history, now=parts.clock.now()))

    async def _history(self, namespace: str, exporter: str) -> list[Lease]:
        """The newest of the ended leases of a target, newest first."""
        ended = await self._parts.ended_leases.of(namespace)
        found = [lease for lease in ended if _held(lease) == exporter]
        return found[-HISTORY_MAX:][::-1]

    async def _timeline(self, request: Request, person: Person) -> Response:
        """The newest ended leases of a namespace that had a target, oldest first."""
        namespace = request.query.get("namespace", "")
        scope = await self._parts.people.scope(person)
        if not scope.sees(LEASE, namespace):
            raise NotFound(f"there is no namespace {namespace} whose leases you may see")
        found = await self._parts.ended_leases.of(namespace)
        now = self._parts.clock.now()
        return json_response({"leases": [rows.lease_row(each, now=now) for each in found]})

    # Acting

    async def _lease(self, request: Request, person: Person, key: list[str]) -> Response:
        actions = self._parts.leases
        if not key and request.method == "POST":
            return await actions.create(request, person)
        if len(key) == 2 and request.method in ("PATCH", "DELETE"):
            lease = await self._seen_lease(person, *key)
            act = actions.update if request.method == "PATCH" else actions.release
            return await act(request, person, lease)
        raise NotFound(f"the dashboard has no {request.method} {request.path}")

    async def _claim(self, request: Request, person: Person, namespace: str, name: str) -> Response:
        claim = self._parts.views[DeviceClaim].get(namespace, name)
        scope = await self._parts.people.scope(person)
        if claim is None or not scope.sees(CLAIM, namespace):
            raise NotFound(f"there is no claim {name} in namespace {namespace}")
        actions = self._parts.leases
        act = actions.update_claim if request.method == "PATCH" else actions.release_claim
        return await act(request, person, claim)

    async def _seen_lease(self, person: Person, namespace: str, name: str) -> Lease:
        scope = await self._parts.people.scope(person)
        if not scope.sees(LEASE, namespace):
            raise NotFound(f"there is no lease {name} in namespace {namespace}")
        return await self._parts.views.find_lease(namespace, name)

    async def _object(self, request: Request, person: Person, path: str) -> Response:
        """Pass a request to the API server, which authorizes and records it."""
        return await self._parts.object_requests.respond(replace(request, path=f"/{path}"), person)


def events(body: AsyncIterator[bytes]) -> Response:
    """A response of server-sent events."""
    return Response(body=body, content_type="text/event-stream")


def _protected(response: Response) -> Response:
    return replace(response, headers=(*protection.HEADERS, *response.headers))


def _held(lease: Lease) -> str:
    held = lease.status.exporter_ref
    return held.name if held is not None else ""
