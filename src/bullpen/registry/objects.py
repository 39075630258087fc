"""The client interface of controllers and services, in the same process as the objects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Generic, TypeVar

from bullpen.api import codec
from bullpen.api.fields import Kind
from bullpen.api.objects import Foresight, Listing, Seen, meta_of
from bullpen.api.paths import Document, decode
from bullpen.api.resource import Resource
from bullpen.errors import LabError, NotFound
from bullpen.kit.selectors import parse_labels
from bullpen.registry.lists import Filter
from bullpen.registry.options import DeleteOptions, FieldValidation, PatchType, WriteOptions
from bullpen.registry.registry import Registry
from bullpen.registry.watches import ObjectWatch
from bullpen.store.base import Entry

log = logging.getLogger("bullpen.registry")

K = TypeVar("K", bound=Kind)
A = TypeVar("A", bound=Kind)
B = TypeVar("B", bound=Kind)


RECENT_MAX = 1_000
PAGE = 200
"""Objects decoded at once by ``pages``."""


class RegistryObjects:
    """``api.objects.Objects`` over a registry, writing under one manager's name."""

    def __init__(self, registry: Registry, *, manager: str) -> None:
        self._registry = registry
        self._manager = manager
        self._recent: dict[bytes, Kind] = {}
        """Recently decoded objects, oldest first: our own writes come back through a watch."""

    async def get(self, kind: type[K], namespace: str, name: str) -> K:
        value = self._registry.get(self._resource(kind), namespace, name)
        return self._value(kind, value)

    async def list(self, kind: type[K]) -> Listing[K]:
        resource = self._resource(kind)
        page = self._registry.store.warm(resource.prefix)
        selected = Filter(resource, parse_labels(kind.selected), None)
        found = (e for e in page.entries if not selected or selected.matches(e.key, e.value))
        return Listing(_decoded(kind, found), page.revision)

    def watch(self, kind: type[K], *, since: int) -> _Feed[K]:
        selected = parse_labels(kind.selected)
        watch = self._registry.watch(self._resource(kind), None, labels=selected, since=since)
        return _Feed(watch, lambda value: self._readable(kind, value))

    async def pages(
        self, kind: type[K], *, namespace: str = "", labels: str = ""
    ) -> AsyncGenerator[tuple[K, ...], None]:
        resource, selector, token = self._resource(kind), parse_labels(labels), ""
        while True:
            page = self._registry.list(
                resource, namespace or None, labels=selector, limit=PAGE, continue_token=token
            )
            yield _decoded(kind, page.entries)
            token = page.continue_token
            if not token:
                return
            # Other tasks must not wait for all pages.
            await asyncio.sleep(0)

    def foresee(self, kind: type[K], listener: Foresight[K]) -> None:
        prefix = self._resource(kind).prefix

        def heard(key: str, head: Entry | None) -> None:
            if key.startswith(prefix):
                namespace, _, name = key.removeprefix(prefix).partition("/")
                try:
                    listener(namespace, name, self._value(kind, head.value) if head else None)
                except Exception:
                    # The write must not fail because of it. The watch delivers it again, which
                    # reports it.
                    log.exception("foreseen change not processed", extra={"key": key})

        self._registry.foresee(heard)

    async def create(self, value: K) -> K:
        meta = meta_of(value)
        written = await self._registry.create(
            self._resource(type(value)), meta.namespace, codec.encode(value), self._options()
        )
        return self._value(type(value), written.value)

    async def apply(self, value: K) -> K:
        meta = meta_of(value)
        written = await self._registry.patch(
            self._resource(type(value)),
            meta.namespace,
            meta.name,
            PatchType.APPLY,
            codec.encode(value),
            replace(self._options(), force=True),
        )
        return self._value(type(value), written.value)

    async def update(self, value: K) -> K:
        return await self._put(value, codec.encode(value), "")

    async def update_status(self, value: K) -> K:
        if not self._resource(type(value)).custom:
            # The status of a built-in kind is written together with its metadata.
            return await self._put(value, codec.encode(value), "status")
        meta = meta_of(value)
        identity = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        document = {
            "apiVersion": value.api_version,
            "kind": value.kind,
            "metadata": {"name": meta.name, "namespace": meta.namespace, **identity},
            "status": codec.encode_section(value, "status"),
        }
        return await self._put(value, document, "status")

    async def update_statuses(self, first: A, second: B) -> tuple[A, B]:
        async with asyncio.TaskGroup() as tasks:
            one = tasks.create_task(_outcome(self.update_status(first)))
            two = tasks.create_task(_outcome(self._behind(one, second)))
        return _checked(one.result()), _checked(two.result())

    async def _behind(self, one: asyncio.Task[A | LabError], second: B) -> B:
        """Write ``second`` unless ``one``, which was started before, was rejected.

        A write is accepted or rejected in its first step, so both go into one commit.
        """
        if one.done():
            _checked(one.result())
        return await self.update_status(second)

    async def _put(self, value: K, document: Document, subresource: str) -> K:
        meta, resource = meta_of(value), self._resource(type(value))
        assert meta.resource_version, "a change names the revision it was decided on"
        head = self._registry.store.head(resource.key(meta.namespace, meta.name))
        written = await self._registry.update(
            resource, meta.namespace, meta.name, document, self._options(subresource)
        )
        return self._value(type(value), written.value, head)

    async def delete(self, value: Kind) -> None:
        meta = meta_of(value)
        options = DeleteOptions(uid=meta.uid, resource_version=meta.resource_version)
        resource = self._resource(type(value))
        try:
            await self._registry.delete(resource, meta.namespace, meta.name, options)
        except NotFound:
            return

    def _value(self, kind: type[K], stored: bytes, before: Entry | None = None) -> K:
        """The value of ``stored``, sharing unchanged parts with the state ``before``."""
        found = self._recent.get(stored)
        if not isinstance(found, kind):
            known = self._known(kind, before.value) if before else None
            found = codec.decode(kind, self._registry.document(stored), known)
            self._recent[stored] = found
            if len(self._recent) > RECENT_MAX:
                del self._recent[next(iter(self._recent))]
        return found

    def _readable(self, kind: type[K], stored: bytes) -> K | None:
        """The value of ``stored``, or None for an object that cannot be read."""
        try:
            return self._value(kind, stored)
        except Exception:
            return codec.decode_or_none(kind, decode(stored))

    def _known(self, kind: type[K], stored: bytes) -> codec.Known[K] | None:
        found = self._recent.get(stored)
        if not isinstance(found, kind):
            return None
        return codec.Known(self._registry.document(stored), found)

    def _resource(self, kind: type[Kind]) -> Resource:
        return self._registry.resources.of(kind)

    def _options(self, subresource: str = "") -> WriteOptions:
        return WriteOptions(
            subresource=subresource,
            field_manager=self._manager,
            field_validation=FieldValidation.IGNORE,
        )


def _decoded(kind: type[K], entries: Iterable[Entry]) -> tuple[K, ...]:
    found = (codec.decode_or_none(kind, decode(entry.value)) for entry in entries)
    return tuple(item for item in found if item is not None)


async def _outcome(act: Awaitable[K]) -> K | LabError:
    try:
        return await act
    except LabError as error:
        return error


def _checked(outcome: K | LabError) -> K:
    if isinstance(outcome, LabError):
        raise outcome
    return outcome


class _Feed(Generic[K]):
    def __init__(self, watch: ObjectWatch, read: Callable[[bytes], K | None]) -> None:
        self._watch = watch
        self._read = read

    async def next(self) -> Iterable[Seen[K]]:
        events = await self._watch.next()
        return [
            Seen(value, event.type == "DELETED")
            for event in events
            if (value := self._read(event.value)) is not None
        ]

    def close(self) -> None:
        self._watch.close()
