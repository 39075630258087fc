"""``api.objects.Objects`` over an API server: list and watch, compare-and-set writes."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Generic, TypeVar

from bullpen import errors
from bullpen.api import codec
from bullpen.api.fields import Kind
from bullpen.api.objects import Foresight, Listing, Seen, meta_of
from bullpen.api.paths import Document
from bullpen.api.pod import CLUSTER_RESOURCES
from bullpen.api.resource import Resource
from bullpen.cluster.kubeconfig import Access
from bullpen.cluster.transport import Request, Transport
from bullpen.cluster.watches import Watch

K = TypeVar("K", bound=Kind)
A = TypeVar("A", bound=Kind)
B = TypeVar("B", bound=Kind)

PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which objects of a kind are listed and watched. Getting one by name is not limited."""

    namespace: str = ""
    """Empty for all."""

    labels: str = ""
    fields: str = ""


EVERYTHING = Scope()
NO_SCOPES: Mapping[type[Kind], Scope] = MappingProxyType({})


class ClusterObjects:
    """A connection to one API server, writing under one manager's name."""

    def __init__(
        self,
        access: Access,
        *,
        manager: str,
        namespace: str = "",
        scopes: Mapping[type[Kind], Scope] = NO_SCOPES,
    ) -> None:
        """``namespace`` limits every kind that ``scopes`` does not mention; empty for all."""
        self._manager = manager
        self._scopes = scopes
        self._namespace = namespace
        self._transport = Transport(access, agent=manager)
        # Processes that lose the same server must not reconnect in step.
        self._chance = random.Random(manager)

    async def __aenter__(self) -> ClusterObjects:
        self._transport.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._transport.close()

    @property
    def access(self) -> Access:
        """How its API server is reached."""
        return self._transport.access

    @property
    def requests(self) -> Counter[tuple[str, str, int]]:
        """How many requests were answered, by verb, resource and status code."""
        return self._transport.requests

    async def get(self, kind: type[K], namespace: str, name: str) -> K:
        path = _path(_of(kind), namespace, name)
        return codec.decode(kind, await self._call("get", kind, "GET", path))

    async def list(self, kind: type[K]) -> Listing[K]:
        items: list[K] = []
        revision = 0
        async with contextlib.aclosing(self._listed(kind, *self._place(kind))) as pages:
            async for page in pages:
                items += page.items
                revision = page.revision
        return Listing(tuple(items), revision)

    async def pages(
        self, kind: type[K], *, namespace: str = "", labels: str = ""
    ) -> AsyncGenerator[tuple[K, ...], None]:
        path = _path(_of(kind), namespace or self._namespace or None)
        query = {"labelSelector": labels} if labels else {}
        async with contextlib.aclosing(self._listed(kind, path, query)) as pages:
            async for page in pages:
                yield page.items

    async def _listed(
        self, kind: type[K], path: str, query: dict[str, str]
    ) -> AsyncGenerator[Listing[K], None]:
        query = {**query, "limit": str(PAGE)}
        while True:
            page = await self._call("list", kind, "GET", path, query)
            found = (codec.decode_or_none(kind, item) for item in page["items"])
            items = tuple(value for value in found if value is not None)
            yield Listing(items, int(page["metadata"]["resourceVersion"]))
            token = page["metadata"].get("continue")
            if not token:
                return
            query = {**query, "continue": token}

    def watch(self, kind: type[K], *, since: int) -> ClusterFeed[K]:
        path, query = self._place(kind)
        request = Request(
            verb="watch", resource=_counted(kind), method="GET", path=path, query=query
        )
        return ClusterFeed(Watch(self._transport, request, since, self._chance), kind)

    def foresee(self, kind: type[K], listener: Foresight[K]) -> None:
        """A write here is reported only when it can be read, so the listener is never called."""

    async def create(self, value: K) -> K:
        path = _path(_of(type(value)), meta_of(value).namespace)
        return await self._written("create", "POST", path, value)

    async def apply(self, value: K) -> K:
        meta = meta_of(value)
        path = _path(_of(type(value)), meta.namespace, meta.name)
        query = {"fieldManager": self._manager, "force": "true"}
        answer = await self._call("patch", type(value), "PATCH", path, query, codec.encode(value))
        return codec.decode(type(value), answer)

    async def update(self, value: K) -> K:
        return await self._put(value, "")

    async def update_status(self, value: K) -> K:
        return await self._put(value, "status")

    async def update_statuses(self, first: A, second: B) -> tuple[A, B]:
        return await self.update_status(first), await self.update_status(second)

    async def _put(self, value: K, subresource: str) -> K:
        meta = meta_of(value)
        assert meta.resource_version, "a change names the revision it was decided on"
        path = _path(_of(type(value)), meta.namespace, meta.name, subresource)
        return await self._written("update", "PUT", path, value)

    async def _written(self, verb: str, method: str, path: str, value: K) -> K:
        query = {"fieldManager": self._manager}
        answer = await self._call(verb, type(value), method, path, query, codec.encode(value))
        return codec.decode(type(value), answer)

    async def delete(self, value: Kind) -> None:
        meta = meta_of(value)
        options: Document = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        }
        path = _path(_of(type(value)), meta.namespace, meta.name)
        with contextlib.suppress(errors.NotFound):
            await self._call("delete", type(value), "DELETE", path, None, options)

    async def _call(
        self,
        verb: str,
        kind: type[Kind],
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: object = None,
    ) -> Document:
        request = Request(
            verb=verb,
            resource=_counted(kind),
            method=method,
            path=path,
            query=query,
            body=body,
        )
        return await self._transport.call(request)

    def _place(self, kind: type[Kind]) -> tuple[str, dict[str, str]]:
        """The path and the selectors under which the kind is listed and watched."""
        scope = self._scopes.get(kind, Scope(namespace=self._namespace))
        labels = ",".join(text for text in (scope.labels, kind.selected) if text)
        query = {"labelSelector": labels, "fieldSelector": scope.fields}
        path = _path(_of(kind), scope.namespace or None)
        return path, {name: text for name, text in query.items() if text}


class ClusterFeed(Generic[K]):
    """The changes of a watch, as values."""

    def __init__(self, watch: Watch, kind: type[K]) -> None:
        self._watch = watch
        self._kind = kind

    async def next(self) -> Iterable[Seen[K]]:
        event = await self._watch.next()
        if event.type == "BOOKMARK":
            return ()
        value = codec.decode_or_none(self._kind, event.object)
        return () if value is None else (Seen(value, event.type == "DELETED"),)

    def close(self) -> None:
        self._watch.close()


def _path(resource: Resource, namespace: str | None, name: str = "", sub: str = "") -> str:
    parts = ["/apis", resource.group] if resource.group else ["/api"]
    parts.append(resource.version)
    if resource.namespaced and namespace is not None:
        parts += ["namespaces", namespace]
    return "/".join([*parts, *(part for part in (resource.plural, name, sub) if part)])


def _counted(kind: type[Kind]) -> str:
    """The resource name for the counters; there are two kinds of leases."""
    resource = _of(kind)
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def _of(kind: type[Kind]) -> Resource:
    return CLUSTER_RESOURCES.of(kind)
