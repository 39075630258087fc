"""The API server without sockets: a request in, a response out, never an exception."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import assert_never

from bullpen.api.resource import Resource
from bullpen.api.resources import Resources
from bullpen.apiserver import (
    authentication,
    discovery,
    http,
    openapi,
    representations,
    scaledown,
)
from bullpen.apiserver.admission import Hindrance, admission
from bullpen.apiserver.authentication import PUBLIC_PATHS, Authenticator, authenticate
from bullpen.apiserver.http import Request, Response, json_response
from bullpen.apiserver.metrics import Metrics
from bullpen.apiserver.objects import Objects, verb_of
from bullpen.apiserver.openapi import OpenApi
from bullpen.apiserver.recording import Caller, Record
from bullpen.apiserver.reviews import Reviews, TokenRequests
from bullpen.apiserver.routes import (
    ObjectRoute,
    PlainRoute,
    ReviewRoute,
    attributes_of,
    refusal,
    route,
)
from bullpen.apiserver.scaledown import ScaleDowns
from bullpen.apiserver.status import failure_response
from bullpen.audit.events import AuditSink, NoAudit
from bullpen.core.rbac.authorization import AccessIndex, Attributes, User
from bullpen.errors import (
    BadRequest,
    Forbidden,
    LabError,
    MethodNotAllowed,
    NotFound,
    TimedOut,
    TooManyRequests,
    Unavailable,
)
from bullpen.identity.serviceaccounts import AccountTokens
from bullpen.kit import durations
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids, RandomIds
from bullpen.registry.objects import RegistryObjects
from bullpen.registry.registry import Registry
from bullpen.runtime.exposition import exposition

log = logging.getLogger("bullpen.apiserver")

REQUEST_SECONDS_MAX = 60.0
IN_FLIGHT_MAX = 2_000
RECHECK_SECONDS = 0.5
"""Delay after a change of roles or bindings before open watches are checked again."""

KUBERNETES_VERSION = ("1", "32")
"""The Kubernetes release whose behaviour is followed, as ``/version`` reports it."""


class ApiService:
    def __init__(
        self,
        registry: Registry,
        *,
        resources: Resources,
        clock: Clock,
        authenticators: tuple[Authenticator, ...],
        version: str,
        access: AccessIndex | None = None,
        tokens: AccountTokens | None = None,
        audit: AuditSink | None = None,
        ids: Ids | None = None,
        problem: Callable[[], str] = lambda: "",
        hindrance: Hindrance = lambda new, old: "",
    ) -> None:
        """Without ``access`` only members of system:masters may do anything.

        Without ``tokens`` no tokens of ServiceAccounts are issued, without ``audit`` nothing is
        recorded. ``problem`` says why the service is not ready; empty if it is. ``hindrance`` says
        why the lab cannot accept the change of a lease or claim.
        """
        self._registry = registry
        self._resources = resources
        self._clock = clock
        self._authenticators = authenticators
        self._access = access or AccessIndex()
        self._ids = ids or RandomIds()
        self._audit = audit or NoAudit()
        self._access.listen(self._access_changed)
        self._recheck: asyncio.TimerHandle | None = None
        self._reviews = Reviews(self._access, authenticators)
        self._scale_downs = ScaleDowns(RegistryObjects(registry, manager=scaledown.MANAGER))
        self._token_requests = TokenRequests(registry, tokens, clock=clock, ids=self._ids)
        self._objects = Objects(registry, clock)
        self._openapi = OpenApi(resources, version=version)
        self._openapi2 = openapi.document(resources, version=version)
        self._version = version
        self._problem = problem
        self._hindrance = hindrance
        self._in_flight = 0
        self._closing = False
        self.metrics = Metrics()

    def close(self) -> None:
        """Reject new requests and end every watch stream, so that the server can stop at once."""
        self._closing = True
        if self._recheck is not None:
            self._recheck.cancel()
        self._objects.close()

    def _access_changed(self) -> None:
        """Check the open watches again soon, once for many changes."""
        if self._recheck is None:
            loop = asyncio.get_running_loop()
            self._recheck = loop.call_later(RECHECK_SECONDS, self._end_forbidden_watches)

    def _end_forbidden_watches(self) -> None:
        self._recheck = None
        self._objects.end_forbidden_watches()

    async def authenticate(self, request: Request) -> Caller | None:
        """The caller, or None for a path that needs no credentials.

        Separate from ``respond`` so that the body of an unknown caller is never read.
        Raises ``Unauthorized``, or ``Forbidden`` for an impersonation that is not allowed.
        """
        if request.path in PUBLIC_PATHS:
            return None
        user = await authenticate(request, self._authenticators)
        wanted = authentication.requested(request.impersonation)
        if wanted is None:
            return Caller(user=user)
        for needed in authentication.required(wanted):
            if not self._access.decide(user, needed).allowed:
                raise Forbidden(refusal(user, needed), user=user)
        return Caller(user=authentication.impersonated(wanted), impersonator=user)

    def refuse(self, request: Request, error: LabError) -> Response:
        """The response to a request whose caller ``authenticate`` did not accept."""
        record = self._record(request, None)
        user = error.facts.get("user")
        record.caller = Caller(user=user) if isinstance(user, User) else None
        with contextlib.suppress(LabError):
            record.target = route(request.path, self._resources)
            if isinstance(record.target, ObjectRoute):
                record.verb = verb_of(record.target, request)
        return self._finish(record, _refusal(record, error))

    async def respond(self, request: Request, caller: Caller | None) -> Response:
        """Respond; every error becomes a Status, a bug a 500 with a logged traceback."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        record = self._record(request, caller)
        try:
            record.target = route(request.path, self._resources)
            if isinstance(record.target, ObjectRoute):
                record.verb = verb_of(record.target, request)
            response = await self._bounded(record)
        except LabError as error:
            response = _refusal(record, error)
        except Exception:
            log.exception("request failed", extra={"key": request.path, "verb": record.verb})
            response = _refusal(record, LabError("internal error; the server's log has the cause"))
        if record.verb != "watch":
            self.metrics.seconds.labels(record.verb).observe(loop.time() - started)
        return self._finish(record, response)

    def _record(self, request: Request, caller: Caller | None) -> Record:
        return Record(
            request=request,
            received=self._clock.now(),
            caller=caller,
            target=PlainRoute(request.path),
            verb=request.method.lower(),
        )

    def _finish(self, record: Record, response: Response) -> Response:
        """Count the response, and record it if it is a change or a refusal."""
        target = record.target
        resource = target.resource.plural if isinstance(target, ObjectRoute) else ""
        self.metrics.requests.labels(record.verb, resource, str(response.status)).inc()
        if record.wanted(response):
            now = self._clock.now()
            self._audit.record(record.event(response, audit_id=self._ids.uid(), now=now))
        return response

    async def _bounded(self, record: Record) -> Response:
        if self._closing:
            raise Unavailable("the server is shutting down; try again shortly")
        if self._in_flight >= IN_FLIGHT_MAX:
            raise TooManyRequests("too many requests in flight; try again shortly")
        attributes = self._authorized(record)
        self._in_flight += 1
        seconds = _deadline(record.request)
        try:
            async with asyncio.timeout(seconds):
                return await self._dispatch(record, attributes)
        except TimeoutError:
            raise TimedOut(f"the request did not finish within {seconds:g} s") from None
        finally:
            self._in_flight -= 1

    async def _dispatch(self, record: Record, attributes: Attributes) -> Response:
        request, caller = record.request, record.caller
        match record.target:
            case ObjectRoute(subresource="token") as target:
                answer = self._token_requests.answer(target, http.document(request))
                return json_response(answer, status=201)
            case ObjectRoute(subresource="scaledownwith") as target:
                dry_run = request.query.get("dryRun", "") == "All"
                body = http.document(request)
                return json_response(
                    await self._scale_downs.answer(target, body, dry_run=dry_run), status=201
                )
            case ObjectRoute() as target:
                assert caller is not None
                user, admit = caller.user, None
                if record.verb in ("create", "update", "patch"):
                    admit = admission(self._access, user, target, attributes, self._hindrance)
                return await self._objects.handle(
                    target,
                    request,
                    record.verb,
                    admit=admit,
                    allowed=lambda: self._access.decide(user, attributes).allowed,
                )
            case ReviewRoute() as target:
                assert caller is not None
                if request.method != "POST":
                    raise MethodNotAllowed(f"{target.kind} must be requested with POST")
                representations.choose(request.headers.get("accept", ""), tables=False)
                question = http.document(request)
                answer = await self._reviews.answer(target, question, caller.user)
                return json_response(answer, status=201)
            case PlainRoute(path):
                if request.method not in ("GET", "HEAD"):
                    raise MethodNotAllowed(f"{request.method} does not apply to {path}")
                return self._plain(path, request)
            case _:
                assert_never(record.target)

    def _authorized(self, record: Record) -> Attributes:
        """The attributes of the request; raises ``Forbidden`` unless the caller is authorized."""
        attributes = attributes_of(record.target, record.request, record.verb)
        if record.caller is None:
            assert record.request.path in PUBLIC_PATHS, "every other path has a caller"
            return attributes
        user = record.caller.user
        record.decision = self._access.decide(user, attributes)
        if not record.decision.allowed:
            raise Forbidden(refusal(user, attributes))
        return attributes

    def _plain(self, path: str, request: Request) -> Response:
        accept = request.headers.get("accept", "")
        match path:
            case "/api" | "/apis":
                return self._discovery(path, accept)
            case "/version":
                return json_response(self._version_info())
            case "/openapi/v3":
                return json_response(self._openapi.index)
            case "/openapi/v2" if openapi.ASKED_AS in accept:
                return Response(body=self._openapi2, content_type=openapi.ANSWERED_AS)
            case "/livez" | "/healthz":
                return _text("ok")
            case "/readyz":
                problem = self._problem()
                return _text(problem, status=503) if problem else _text("ok")
            case "/metrics":
                return self._metrics(accept)
            case "/":
                return json_response({"paths": _PATHS})
            case _:
                return self._nested(path)

    def _discovery(self, path: str, accept: str) -> Response:
        kind = discovery.aggregated_type(accept)
        core = path == "/api"
        if kind:
            version = "v2beta1" if "v=v2beta1" in kind else "v2"
            document = discovery.aggregated(self._resources, core=core, version=version)
            return json_response(document, content_type=kind)
        legacy = discovery.api_versions() if core else discovery.api_groups(self._resources)
        return json_response(legacy)

    def _nested(self, path: str) -> Response:
        parts = path.strip("/").split("/")
        document: object = None
        if parts[:2] == ["openapi", "v3"]:
            body = self._openapi.document("/".join(parts[2:]))
            if body is not None:
                return Response(body=body)
        elif parts[0] == "api" and len(parts) == 2:
            document = discovery.api_resources(self._resources, "", parts[1])
        elif parts[0] == "apis" and len(parts) == 2:
            document = discovery.api_group(self._resources, parts[1])
        elif parts[0] == "apis" and len(parts) == 3:
            document = discovery.api_resources(self._resources, parts[1], parts[2])
        if document is None:
            raise NotFound("the server could not find the requested resource")
        return json_response(document)

    def _metrics(self, accept: str) -> Response:
        self.metrics.watchers.set(self._objects.watchers)
        self.metrics.in_flight.set(self._in_flight)
        self.metrics.revision.set(self._registry.revision)
        body, content_type = exposition(self.metrics.collectors, accept)
        return Response(body=body, content_type=content_type)

    def _version_info(self) -> dict[str, str]:
        major, minor = KUBERNETES_VERSION
        return {
            "major": major,
            "minor": minor,
            "gitVersion": f"v{major}.{minor}.0+bullpen-{self._version}",
            "gitCommit": "",
            "gitTreeState": "",
            "buildDate": "",
            "goVersion": "",
            "compiler": "CPython",
            "platform": "linux/amd64",
        }


_PATHS = [
    "/api",
    "/api/v1",
    "/apis",
    "/healthz",
    "/livez",
    "/metrics",
    "/openapi/v3",
    "/readyz",
    "/version",
]


def _deadline(request: Request) -> float:
    """The caller's ``timeout``, limited by ours. It does not apply to a watch."""
    text = request.query.get("timeout", "")
    if not text:
        return REQUEST_SECONDS_MAX
    try:
        seconds = durations.parse(f"{text}s" if text.isdigit() else text).total_seconds()
    except ValueError as error:
        raise BadRequest(f"query parameter timeout: {error}") from None
    return min(seconds, REQUEST_SECONDS_MAX) if seconds > 0 else REQUEST_SECONDS_MAX


def _text(body: str, *, status: int = 200) -> Response:
    return Response(status=status, body=body.encode(), content_type="text/plain; charset=utf-8")


def _refusal(record: Record, error: LabError) -> Response:
    record.error = error
    resource: Resource | None = None
    name = ""
    if isinstance(record.target, ObjectRoute):
        resource, name = record.target.resource, record.target.name
    return failure_response(error, resource=resource, name=name)
