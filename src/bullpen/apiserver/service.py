"""The API server without sockets: a request in, a response out, never an exception."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import assert_never

from bullpen.api.resources import Resource, Resources
from bullpen.apiserver import bodies, discovery, openapi2, reviews
from bullpen.apiserver.auth import (
    PUBLIC_PATHS,
    Action,
    Authenticator,
    Role,
    User,
    authenticate,
    permits,
)
from bullpen.apiserver.http import Request, Response, json_response
from bullpen.apiserver.metrics import CONTENT_TYPE, Metrics
from bullpen.apiserver.objects import Objects, verb_of
from bullpen.apiserver.openapi import OpenApi
from bullpen.apiserver.routes import ObjectRoute, PlainRoute, ReviewRoute, Route, route
from bullpen.apiserver.status import failure_response
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
from bullpen.kit import durations
from bullpen.kit.clock import Clock
from bullpen.registry.registry import Registry

log = logging.getLogger("bullpen.apiserver")

REQUEST_SECONDS_MAX = 60.0
IN_FLIGHT_MAX = 2_000

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
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._registry = registry
        self._resources = resources
        self._authenticators = authenticators
        self._objects = Objects(registry, clock)
        self._openapi = OpenApi(resources, version=version)
        self._openapi2 = openapi2.document(resources, version=version)
        self._version = version
        self._ready = ready
        self._in_flight = 0
        self._closing = False
        self.metrics = Metrics()

    def close(self) -> None:
        """Refuse new work and end every watch stream, so that a server can stop at once."""
        self._closing = True
        self._objects.close()

    def authenticate(self, request: Request) -> User | None:
        """The caller, or None where nobody need say who they are.

        Separate from ``respond`` so that a stranger's body is never read.
        """
        if request.path in PUBLIC_PATHS:
            return None
        return authenticate(request.headers, self._authenticators)

    async def respond(self, request: Request, user: User | None) -> Response:
        """Answer; every error becomes a Status, bugs a 500 with a logged traceback."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        target: Route = PlainRoute(request.path)
        verb = request.method.lower()
        try:
            target = route(request.path, self._resources)
            if isinstance(target, ObjectRoute):
                verb = verb_of(target, request)
            response = await self._bounded(target, request, user, verb)
        except LabError as error:
            response = _refusal(target, error)
        except Exception:
            log.exception("request failed", extra={"key": request.path, "verb": verb})
            response = _refusal(target, LabError("internal error; the server's log has the cause"))
        resource = target.resource.plural if isinstance(target, ObjectRoute) else ""
        self.metrics.requests.labels(verb, resource, str(response.status)).inc()
        if verb != "watch":
            self.metrics.seconds.labels(verb).observe(loop.time() - started)
        return response

    async def _bounded(
        self, target: Route, request: Request, user: User | None, verb: str
    ) -> Response:
        if self._closing:
            raise Unavailable("the server is shutting down; try again shortly")
        if self._in_flight >= IN_FLIGHT_MAX:
            raise TooManyRequests("too many requests in flight; try again shortly")
        self._authorize(target, request, user, verb)
        self._in_flight += 1
        seconds = _deadline(request)
        try:
            async with asyncio.timeout(seconds):
                return await self._dispatch(target, request, user, verb)
        except TimeoutError:
            raise TimedOut(f"the request did not finish within {seconds:g} s") from None
        finally:
            self._in_flight -= 1

    async def _dispatch(
        self, target: Route, request: Request, user: User | None, verb: str
    ) -> Response:
        match target:
            case ObjectRoute():
                return await self._objects.handle(target, request, verb)
            case ReviewRoute():
                assert user is not None
                if request.method != "POST":
                    raise MethodNotAllowed(f"{target.kind} is asked with POST")
                answer = reviews.answer(target.kind, bodies.document(request), user)
                return json_response(answer, status=201)
            case PlainRoute(path):
                if request.method not in ("GET", "HEAD"):
                    raise MethodNotAllowed(f"{request.method} does not apply to {path}")
                return self._plain(path, request)
            case _:
                assert_never(target)

    def _authorize(self, target: Route, request: Request, user: User | None, verb: str) -> None:
        if user is None:
            return
        match target:
            case ObjectRoute(resource=resource, subresource=sub):
                action = Action(
                    verb=verb, group=resource.group, resource=resource.plural, subresource=sub
                )
                what = f"{verb} {resource.plural}"
            case ReviewRoute(group=group):
                action, what = Action(verb="create", group=group), "ask"
            case PlainRoute(path):
                # Discovery, health and OpenAPI are open to everyone who is somebody here.
                if user.role is not Role.NONE or path == "/version":
                    return
                action, what = Action(verb="get", path=path), f"get {path}"
            case _:
                assert_never(target)
        if not permits(user, action):
            raise Forbidden(f'user "{user.name}" (role {user.role.value}) may not {what} here')

    def _plain(self, path: str, request: Request) -> Response:
        accept = request.headers.get("accept", "")
        match path:
            case "/api" | "/apis":
                return self._discovery(path, accept)
            case "/version":
                return json_response(self._version_info())
            case "/openapi/v3":
                return json_response(self._openapi.index)
            case "/openapi/v2" if openapi2.ASKED_AS in accept:
                return Response(body=self._openapi2, content_type=openapi2.ANSWERED_AS)
            case "/livez" | "/healthz":
                return _text("ok")
            case "/readyz":
                return _text("ok") if self._ready() else _text("starting", status=503)
            case "/metrics":
                return self._metrics()
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

    def _metrics(self) -> Response:
        self.metrics.watchers.set(self._objects.watchers)
        self.metrics.in_flight.set(self._in_flight)
        self.metrics.revision.set(self._registry.revision)
        return Response(body=self.metrics.exposition(), content_type=CONTENT_TYPE)

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
    """The caller's ``timeout``, within ours. A watch's own length is not meant by it."""
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


def _refusal(target: Route, error: LabError) -> Response:
    resource: Resource | None = None
    name = ""
    if isinstance(target, ObjectRoute):
        resource, name = target.resource, target.name
    return failure_response(error, resource=resource, name=name)
