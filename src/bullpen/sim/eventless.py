"""Objects without Events: Events are accepted and not stored.

Nothing depends on Events, and they are a third of all writes.
"""

from __future__ import annotations

from typing import TypeVar

from bullpen.api.core import Event
from bullpen.api.fields import Kind
from bullpen.api.objects import Feed, Foresight, Listing, Objects

K = TypeVar("K", bound=Kind)
A = TypeVar("A", bound=Kind)
B = TypeVar("B", bound=Kind)


class Eventless:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def get(self, kind: type[K], namespace: str, name: str) -> K:
        return await self._objects.get(kind, namespace, name)

    async def list(self, kind: type[K]) -> Listing[K]:
        return Listing((), 0) if kind is Event else await self._objects.list(kind)

    def watch(self, kind: type[K], *, since: int) -> Feed[K]:
        return self._objects.watch(kind, since=since)

    def foresee(self, kind: type[K], listener: Foresight[K]) -> None:
        self._objects.foresee(kind, listener)

    async def create(self, value: K) -> K:
        return value if isinstance(value, Event) else await self._objects.create(value)

    async def apply(self, value: K) -> K:
        return await self._objects.apply(value)

    async def update(self, value: K) -> K:
        return value if isinstance(value, Event) else await self._objects.update(value)

    async def update_status(self, value: K) -> K:
        return await self._objects.update_status(value)

    async def update_statuses(self, first: A, second: B) -> tuple[A, B]:
        return await self._objects.update_statuses(first, second)

    async def delete(self, value: Kind) -> None:
        await self._objects.delete(value)
