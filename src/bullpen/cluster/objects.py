"""``api.objects.Objects`` over an API server: list and watch, compare-and-set writes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec

from bullpen import errors
from bullpen.api import codec
from bullpen.api.document import Document, encode
from bullpen.api.fields import Kind
from bullpen.api.objects import Listing, Seen, meta_of
from bullpen.api.resources import RESOURCES, Resource
from bullpen.cluster.kubeconfig import Access

K = TypeVar("K", bound=Kind)
A = TypeVar("A", bound=Kind)
B = TypeVar("B", bound=Kind)

PAGE = 500
CONNECT_SECONDS_MAX = 5.0
REQUEST_SECONDS_MAX = 30.0
WATCH_SECONDS = 300
LINE_BYTES_MAX = 8 * 1024 * 1024


class ClusterObjects:
    """A connection to one API server, writing under one manager's name."""

    def __init__(self, access: Access, *, manager: str) -> None:
        self._access = access
        self._manager = manager
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ClusterObjects:
        headers = {"Accept": "application/json", "User-Agent": self._manager}
        if self._access.token:
            headers["Authorization"] = f"Bearer {self._access.token}"
        self._http = aiohttp.ClientSession(
            self._access.server,
            headers=headers,
            connector=aiohttp.TCPConnector(ssl=self._access.tls, limit=0),
            timeout=aiohttp.ClientTimeout(
                total=REQUEST_SECONDS_MAX, sock_connect=CONNECT_SECONDS_MAX
            ),
            read_bufsize=LINE_BYTES_MAX,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._http is not None
        await self._http.close()

    async def get(self, kind: type[K], namespace: str, name: str) -> K:
        return codec.decode(kind, await self._call("GET", _path(_of(kind), namespace, name)))

    async def list(self, kind: type[K]) -> Listing[K]:
        items: list[K] = []
        query = {"limit": str(PAGE)}
        while True:
            page = await self._call("GET", _path(_of(kind), None), query)
            # Items of a list need not repeat what they are; the codec wants it.
            items += [codec.decode(kind, {**_type(kind), **item}) for item in page["items"]]
            token = page["metadata"].get("continue")
            if not token:
                return Listing(tuple(items), int(page["metadata"]["resourceVersion"]))
            query["continue"] = token

    def watch(self, kind: type[K], *, since: int) -> ClusterFeed[K]:
        return ClusterFeed(self, kind, since)

    async def create(self, value: K) -> K:
        meta = meta_of(value)
        path = _path(_of(type(value)), meta.namespace)
        return await self._written("POST", path, value)

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
        return await self._written("PUT", path, value)

    async def _written(self, method: str, path: str, value: K) -> K:
        query = {"fieldManager": self._manager}
        answer = await self._call(method, path, query, codec.encode(value))
        return codec.decode(type(value), answer)

    async def delete(self, value: Kind) -> None:
        meta = meta_of(value)
        preconditions = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        path = _path(_of(type(value)), meta.namespace, meta.name)
        with contextlib.suppress(errors.NotFound):
            await self._call("DELETE", path, None, {"preconditions": preconditions})

    async def _call(
        self, method: str, path: str, query: dict[str, str] | None = None, body: object = None
    ) -> Document:
        async with self.open(method, path, query, body) as answer:
            document: Document = msgspec.json.decode(await _read(answer))
            return document

    @contextlib.asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: object = None,
        *,
        seconds: float | None = REQUEST_SECONDS_MAX,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that is not a refusal; a refusal is raised as what it stands for."""
        assert self._http is not None, "used outside of its context"
        headers = {"Content-Type": "application/json"} if body is not None else None
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS_MAX)
        try:
            async with self._http.request(
                method,
                path,
                params=query,
                data=None if body is None else encode(body),
                headers=headers,
                timeout=timeout,
            ) as answer:
                if answer.status >= 400:
                    raise _refusal(answer.status, await answer.read())
                yield answer
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise errors.Unreachable(
                f"{self._access.server} does not answer: {str(error) or type(error).__name__}"
            ) from None


class ClusterFeed(Generic[K]):
    """A watch that resumes where it broke, until the revision is gone."""

    def __init__(self, objects: ClusterObjects, kind: type[K], since: int) -> None:
        self._objects = objects
        self._kind = kind
        self._since = since
        self._stack = contextlib.AsyncExitStack()
        self._answer: aiohttp.ClientResponse | None = None

    async def next(self) -> Iterable[Seen[K]]:
        while True:
            if self._answer is None:
                await self._connect()
            assert self._answer is not None
            line = await self._line(self._answer)
            if line is None:
                await self._stack.aclose()
                self._answer = None
                continue
            seen = self._seen(msgspec.json.decode(line))
            if seen is not None:
                return (seen,)

    async def _connect(self) -> None:
        query = {
            "watch": "true",
            "resourceVersion": str(self._since),
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        path = _path(_of(self._kind), None)
        opening = self._objects.open("GET", path, query, seconds=None)
        self._answer = await self._stack.enter_async_context(opening)

    async def _line(self, answer: aiohttp.ClientResponse) -> bytes | None:
        """The next line; None when the server ended the stream, as it does now and then."""
        try:
            return await answer.content.readline() or None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise errors.Unreachable(f"the watch broke: {error}") from None

    def _seen(self, event: Document) -> Seen[K] | None:
        item = event["object"]
        if event["type"] == "ERROR":
            raise _refusal(int(item.get("code", 500)), encode(item))
        self._since = int(item["metadata"]["resourceVersion"])
        if event["type"] == "BOOKMARK":
            return None
        return Seen(codec.decode(self._kind, item), event["type"] == "DELETED")

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    try:
        return await answer.read()
    except aiohttp.ClientError as error:
        raise errors.Unreachable(f"the answer broke off: {error}") from None


def _refusal(status: int, body: bytes) -> errors.LabError:
    try:
        answer: Any = msgspec.json.decode(body)
        reason, message = str(answer.get("reason", "")), str(answer.get("message", ""))
    except (msgspec.DecodeError, AttributeError):
        reason, message = "", body[:200].decode(errors="replace")
    found = errors.of_reason(reason, message)
    if found is not None:
        return found
    cls = errors.Unavailable if status >= 500 else errors.Rejected
    return cls(f"the API server answered {status}: {message}")


def _path(resource: Resource, namespace: str | None, name: str = "", sub: str = "") -> str:
    parts = ["/apis", resource.group] if resource.group else ["/api"]
    parts.append(resource.version)
    if resource.namespaced and namespace is not None:
        parts += ["namespaces", namespace]
    return "/".join([*parts, *(part for part in (resource.plural, name, sub) if part)])


def _of(kind: type[Kind]) -> Resource:
    return RESOURCES.of(kind)


def _type(kind: type[Kind]) -> Document:
    return {"apiVersion": kind.api_version, "kind": kind.kind}
