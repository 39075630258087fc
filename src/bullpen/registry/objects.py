"""The client interface of controllers and services, in the same process as the objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from bullpen.api import codec
from bullpen.api.document import decode
from bullpen.api.fields import Kind
from bullpen.api.objects import Listing, Seen, meta_of
from bullpen.api.resources import Resource
from bullpen.errors import NotFound
from bullpen.registry.options import DeleteOptions, FieldValidation, WriteOptions
from bullpen.registry.registry import Registry
from bullpen.registry.watching import ObjectWatch

K = TypeVar("K", bound=Kind)


class RegistryObjects:
    """``api.objects.Objects`` over a registry, writing under one manager's name."""

    def __init__(self, registry: Registry, *, manager: str) -> None:
        self._registry = registry
        self._manager = manager

    async def get(self, kind: type[K], namespace: str, name: str) -> K:
        value = self._registry.get(self._resource(kind), namespace, name)
        return codec.decode(kind, decode(value))

    async def list(self, kind: type[K]) -> Listing[K]:
        listed = self._registry.list(self._resource(kind), None)
        items = tuple(codec.decode(kind, decode(entry.value)) for entry in listed.entries)
        return Listing(items, listed.revision)

    def watch(self, kind: type[K], *, since: int) -> _Feed[K]:
        return _Feed(kind, self._registry.watch(self._resource(kind), None, since=since))

    async def create(self, value: K) -> K:
        meta = meta_of(value)
        written = await self._registry.create(
            self._resource(type(value)), meta.namespace, codec.encode(value), self._options()
        )
        return codec.decode(type(value), decode(written.value))

    async def update(self, value: K) -> K:
        return await self._put(value, "")

    async def update_status(self, value: K) -> K:
        return await self._put(value, "status")

    async def _put(self, value: K, subresource: str) -> K:
        meta = meta_of(value)
        assert meta.resource_version, "a change names the revision it was decided on"
        written = await self._registry.update(
            self._resource(type(value)),
            meta.namespace,
            meta.name,
            codec.encode(value),
            self._options(subresource),
        )
        return codec.decode(type(value), decode(written.value))

    async def delete(self, value: Kind) -> None:
        meta = meta_of(value)
        options = DeleteOptions(uid=meta.uid, resource_version=meta.resource_version)
        resource = self._resource(type(value))
        try:
            await self._registry.delete(resource, meta.namespace, meta.name, options)
        except NotFound:
            return

    def _resource(self, kind: type[Kind]) -> Resource:
        return self._registry.resources.of(kind)

    def _options(self, subresource: str = "") -> WriteOptions:
        return WriteOptions(
            subresource=subresource,
            field_manager=self._manager,
            field_validation=FieldValidation.IGNORE,
        )


class _Feed(Generic[K]):
    def __init__(self, kind: type[K], watch: ObjectWatch) -> None:
        self._kind = kind
        self._watch = watch

    async def next(self) -> Iterable[Seen[K]]:
        events = await self._watch.next()
        return [
            Seen(codec.decode(self._kind, decode(event.value)), event.type == "DELETED")
            for event in events
        ]

    def close(self) -> None:
        self._watch.close()
