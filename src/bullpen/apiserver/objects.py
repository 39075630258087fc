"""The verbs on objects: translate a request into a registry call and back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from bullpen.api.paths import Document
from bullpen.apiserver import http, representations, watches
from bullpen.apiserver.http import Request, Response, json_response
from bullpen.apiserver.representations import Representation
from bullpen.apiserver.routes import SCALE_DOWN_WITH, ObjectRoute
from bullpen.apiserver.status import success
from bullpen.errors import BadRequest, MethodNotAllowed, TooManyRequests
from bullpen.kit.clock import Clock
from bullpen.kit.fieldselectors import FieldSelector, parse_fields
from bullpen.kit.selectors import Selector, parse_labels
from bullpen.registry.options import (
    Admit,
    DeleteOptions,
    FieldValidation,
    Propagation,
    WriteOptions,
    Written,
)
from bullpen.registry.registry import Registry
from bullpen.registry.watches import ObjectWatch

Allowed = Callable[[], bool]
"""Whether the caller of a watch still has the right to it."""

WATCHERS_MAX = 10_000
WATCH_SECONDS_DEFAULT = 1800.0
WATCH_SECONDS_MAX = 4 * 3600.0


class Objects:
    """Handlers for every verb of every resource in the table."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._watches: dict[ObjectWatch, Allowed] = {}

    @property
    def watchers(self) -> int:
        return len(self._watches)

    def close(self) -> None:
        """End every watch stream."""
        for watch in self._watches:
            watch.close()

    def end_forbidden_watches(self) -> None:
        """End the watch streams whose callers have lost the right to them."""
        for watch, allowed in tuple(self._watches.items()):
            if not allowed():
                watch.close()

    async def handle(
        self,
        route: ObjectRoute,
        request: Request,
        verb: str,
        *,
        admit: Admit | None = None,
        allowed: Allowed = lambda: True,
    ) -> Response:
        """Carry out ``verb``, as returned by ``verb_of``.

        ``admit`` is called before a write, ``allowed`` while a watch is open.
        """
        if route.resource.read_only and verb not in ("get", "list", "watch"):
            raise MethodNotAllowed(
                f"{route.resource.plural} are part of this server and cannot be changed here"
            )
        match verb:
            case "get":
                return self._get(route, request)
            case "list":
                return self._list(route, request)
            case "watch":
                return self._watch(route, request, allowed)
            case "create":
                return await self._create(route, request, admit)
            case "update":
                return await self._update(route, request, admit)
            case "patch":
                return await self._patch(route, request, admit)
            case "delete":
                return await self._delete(route, request)
            case _:
                return await self._delete_collection(route, request)

    def _get(self, route: ObjectRoute, request: Request) -> Response:
        value = self._registry.get(
            route.resource, route.namespace or "", route.name, subresource=route.subresource
        )
        return self._answer(route, request, value)

    def _list(self, route: ObjectRoute, request: Request) -> Response:
        representation = self._representation(route, request)
        labels, fields = _selectors(request)
        listed = self._registry.list(
            route.resource,
            route.namespace,
            labels=labels,
            fields=fields,
            limit=request.number("limit"),
            continue_token=request.query.get("continue", ""),
            resource_version=request.query.get("resourceVersion", ""),
            match=request.query.get("resourceVersionMatch", ""),
        )
        meta: Document = {"resourceVersion": str(listed.revision)}
        if listed.continue_token:
            meta["continue"] = listed.continue_token
            if listed.remaining is not None:
                meta["remainingItemCount"] = listed.remaining
        values = (entry.value for entry in listed.entries)
        return Response(body=representation.many(values, meta))

    def _watch(self, route: ObjectRoute, request: Request, allowed: Allowed) -> Response:
        if self.watchers >= WATCHERS_MAX:
            raise TooManyRequests(f"{WATCHERS_MAX} watches are open; close some or try later")
        labels, fields = _selectors(request)
        if route.name:
            fields = parse_fields(f"metadata.name={route.name}")
        initial = request.flag("sendInitialEvents")
        if initial and request.query.get("resourceVersionMatch", "") != "NotOlderThan":
            raise BadRequest("sendInitialEvents needs resourceVersionMatch=NotOlderThan")
        since = request.number("resourceVersion")
        watch = self._registry.watch(
            route.resource,
            route.namespace,
            labels=labels,
            fields=fields,
            since=None if initial or since == 0 else since,
        )
        options = watches.WatchOptions(
            timeout_seconds=_watch_seconds(request),
            bookmarks=request.flag("allowWatchBookmarks"),
            initial_events=initial,
        )
        representation = self._representation(route, request)
        return Response(body=self._counted(watch, representation, options, allowed))

    async def _counted(
        self,
        watch: ObjectWatch,
        representation: Representation,
        options: watches.WatchOptions,
        allowed: Allowed,
    ) -> AsyncIterator[bytes]:
        self._watches[watch] = allowed
        try:
            async for piece in watches.stream(watch, representation, options):
                yield piece
        finally:
            self._watches.pop(watch, None)
            watch.close()

    async def _create(self, route: ObjectRoute, request: Request, admit: Admit | None) -> Response:
        document = http.document(request)
        options = _write_options(route, request, admit)
        namespace = route.namespace
        if namespace is None:
            raise MethodNotAllowed("create in a namespace: /namespaces/NAMESPACE/…")
        written = await self._registry.create(route.resource, namespace, document, options)
        return self._written(route, request, written, status=201)

    async def _update(self, route: ObjectRoute, request: Request, admit: Admit | None) -> Response:
        document = http.document(request)
        options = _write_options(route, request, admit)
        written = await self._registry.update(
            route.resource, route.namespace or "", route.name, document, options
        )
        return self._written(route, request, written)

    async def _patch(self, route: ObjectRoute, request: Request, admit: Admit | None) -> Response:
        patch_type, patch = http.patch(request, strategic=not route.resource.custom)
        written = await self._registry.patch(
            route.resource,
            route.namespace or "",
            route.name,
            patch_type,
            patch,
            _write_options(route, request, admit),
        )
        return self._written(route, request, written, status=201 if written.created else 200)

    async def _delete(self, route: ObjectRoute, request: Request) -> Response:
        deleted = await self._registry.delete(
            route.resource, route.namespace or "", route.name, _delete_options(request)
        )
        if deleted.finished:
            return json_response(success(route.resource, name=route.name, uid=deleted.uid))
        return self._answer(route, request, deleted.value)

    async def _delete_collection(self, route: ObjectRoute, request: Request) -> Response:
        if route.namespace is None:
            raise MethodNotAllowed("delete a collection in one namespace at a time")
        labels, fields = _selectors(request)
        values = await self._registry.delete_collection(
            route.resource,
            route.namespace,
            labels=labels,
            fields=fields,
            options=_delete_options(request),
        )
        meta: Document = {"resourceVersion": str(self._registry.revision)}
        return Response(body=self._representation(route, request).many(values, meta))

    def _representation(self, route: ObjectRoute, request: Request) -> Representation:
        return Representation(
            resource=route.resource,
            shape=representations.choose(request.headers.get("accept", "")),
            include=representations.include_object(request.query.get("includeObject", "")),
            now=self._clock.now(),
        )

    def _answer(
        self,
        route: ObjectRoute,
        request: Request,
        value: bytes,
        *,
        status: int = 200,
        warnings: tuple[str, ...] = (),
    ) -> Response:
        if route.subresource != "scale":
            value = self._representation(route, request).one(value)
        headers = tuple(("warning", f'299 - "{_quoted(text)}"') for text in warnings)
        return Response(status=status, body=value, headers=headers)

    def _written(
        self, route: ObjectRoute, request: Request, written: Written, *, status: int = 200
    ) -> Response:
        return self._answer(route, request, written.value, status=status, warnings=written.warnings)


def verb_of(route: ObjectRoute, request: Request) -> str:
    """The Kubernetes verb of a request; raises ``MethodNotAllowed`` if there is none."""
    if request.method == "GET" and route.subresource not in ("token", SCALE_DOWN_WITH):
        if request.flag("watch"):
            return "watch"
        return "get" if route.name else "list"
    named = {"PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    whole = {"POST": "create", "DELETE": "deletecollection"}
    verb = (named if route.name else whole).get(request.method)
    if route.subresource in ("token", SCALE_DOWN_WITH):
        verb = "create" if request.method == "POST" else None
    if verb is None or (route.subresource and verb == "delete"):
        raise MethodNotAllowed(f"{request.method} does not apply to {request.path}")
    return verb


def _selectors(request: Request) -> tuple[Selector | None, FieldSelector | None]:
    labels, fields = request.query.get("labelSelector"), request.query.get("fieldSelector")
    return parse_labels(labels) if labels else None, parse_fields(fields) if fields else None


def _watch_seconds(request: Request) -> float:
    seconds = request.number("timeoutSeconds")
    return min(float(seconds) or WATCH_SECONDS_DEFAULT, WATCH_SECONDS_MAX)


def _write_options(route: ObjectRoute, request: Request, admit: Admit | None) -> WriteOptions:
    validation = request.query.get("fieldValidation", "")
    try:
        field_validation = FieldValidation(validation or "Warn")
    except ValueError:
        raise BadRequest(f"fieldValidation={validation!r}: use Ignore, Warn or Strict") from None
    duplicates: tuple[str, ...] = ()
    if field_validation is not FieldValidation.IGNORE:
        duplicates = http.duplicate_fields(request)
    return WriteOptions(
        subresource=route.subresource,
        duplicate_fields=duplicates,
        dry_run=_dry_run(request.query.get("dryRun", "")),
        field_manager=_field_manager(request),
        force=request.flag("force"),
        field_validation=field_validation,
        admit=admit,
    )


def _field_manager(request: Request) -> str:
    """The manager's name; by default derived from the client's user agent."""
    manager = request.query.get("fieldManager", "")
    if len(manager) > 128 or not manager.isprintable():
        raise BadRequest("fieldManager must be at most 128 printable characters")
    if manager or http.media_type(request) == "application/apply-patch+yaml":
        return manager
    return request.headers.get("user-agent", "").partition("/")[0][:128] or "unknown"


def _dry_run(value: str) -> bool:
    if value not in ("", "All"):
        raise BadRequest(f"dryRun={value!r}: the only value is All")
    return value == "All"


def _delete_options(request: Request) -> DeleteOptions:
    body: Document = {}
    if request.body:
        body = http.document(request)
    preconditions = body.get("preconditions") or {}
    if not isinstance(preconditions, dict):
        raise BadRequest("preconditions must be an object")
    dry_run = body.get("dryRun") or []
    if not isinstance(dry_run, list) or any(value != "All" for value in dry_run):
        raise BadRequest("dryRun: the only value is All")
    return DeleteOptions(
        propagation=_propagation(request, body),
        dry_run=bool(dry_run) or _dry_run(request.query.get("dryRun", "")),
        uid=str(preconditions.get("uid") or ""),
        resource_version=str(preconditions.get("resourceVersion") or ""),
    )


def _propagation(request: Request, body: Document) -> Propagation | None:
    """The requested handling of dependents; None leaves it to the object's finalizers."""
    value = body.get("propagationPolicy") or request.query.get("propagationPolicy", "")
    orphan = body.get("orphanDependents")
    if orphan is None and "orphanDependents" in request.query:
        orphan = request.flag("orphanDependents")
    if not value:
        return Propagation.ORPHAN if orphan else None
    try:
        return Propagation(value)
    except ValueError:
        raise BadRequest(
            f"propagationPolicy={value!r}: use Background, Foreground or Orphan"
        ) from None


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
