"""The scaledownwith subresource: removes members of a pool by name, in either home."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from bullpen.api.fields import Kind
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.virtualtarget import VirtualTarget
from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import Objects, meta_of
from bullpen.api.paths import Document
from bullpen.api.scale_down import REMOVALS_MAX
from bullpen.apiserver.discovery import REMOVAL_KIND
from bullpen.apiserver.routes import ObjectRoute
from bullpen.core.pools import named_removal
from bullpen.core.pools.named_removal import Named, Pool, Removed
from bullpen.errors import BadRequest, Conflict, NotFound

K = TypeVar("K", bound=Kind)

ATTEMPTS_MAX = 10
"""Writes that may conflict with the controller or an autoscaler before the caller is told."""

PAUSE_SECONDS = 0.01
MANAGER = "scaledownwith"

_MEMBERS: Mapping[type[Kind], type[Kind]] = {
    ExporterSet: Exporter,
    VirtualTargetPool: VirtualTarget,
}
"""The kind of the members, by the kind of the pool."""


class ScaleDowns:
    """Answers requests, one per pool at a time."""

    def __init__(self, objects: Objects) -> None:
        """``objects`` are read past all caches, and written as manager ``MANAGER``."""
        self._objects = objects
        self._busy: WeakValueDictionary[tuple[str, ...], asyncio.Lock] = WeakValueDictionary()
        """By pool, while a request for it is answered."""

    async def answer(self, route: ObjectRoute, body: Document, *, dry_run: bool) -> Document:
        """Remove the members that ``body`` names, and lower the count by as many."""
        named, when_idle, dry = _parsed(body)
        key = route.resource.plural, route.namespace or "", route.name
        async with self._busy.setdefault(key, asyncio.Lock()):
            for attempt in range(ATTEMPTS_MAX):
                done = await self._decided(route, named, when_idle=when_idle)
                if not done.leaving or dry_run or dry or await self._written(done.pool):
                    return _answer(route, done, dry_run=dry_run or dry)
                await asyncio.sleep(PAUSE_SECONDS * 2**attempt)
        raise Conflict(f"{route.name} changed {ATTEMPTS_MAX} times meanwhile; try again")

    async def _decided(
        self, route: ObjectRoute, named: tuple[Named, ...], *, when_idle: bool
    ) -> Removed:
        namespace, names = route.namespace or "", {each.name for each in named}
        pool: Pool
        if route.resource.value is ExporterSet:
            pool = await self._objects.get(ExporterSet, namespace, route.name)
        else:
            pool = await self._objects.get(VirtualTargetPool, namespace, route.name)
        exporters = await self._found(Exporter, namespace, names)
        # Leases are assigned to Exporters, which have the names of the targets.
        held = ((e.metadata.name, e.status.lease_ref) for e in exporters)
        return named_removal.removed(
            pool,
            named,
            await self._metadata(type(pool), namespace, names),
            leases={name: lease.name for name, lease in held if lease is not None},
            when_idle=when_idle,
        )

    async def _written(self, pool: Pool) -> bool:
        """Write the removals and the count at once; False if the pool has changed since."""
        try:
            await self._objects.update(pool)
        except Conflict:
            return False
        return True

    async def _metadata(
        self, pool: type[Kind], namespace: str, names: set[str]
    ) -> Mapping[str, ObjectMeta]:
        found = map(meta_of, await self._found(_MEMBERS[pool], namespace, names))
        return {meta.name: meta for meta in found}

    async def _found(self, kind: type[K], namespace: str, names: set[str]) -> list[K]:
        """The objects of these names that exist."""
        found: list[K] = []
        for name in sorted(names):
            with contextlib.suppress(NotFound):
                found.append(await self._objects.get(kind, namespace, name))
        return found


def _answer(route: ObjectRoute, done: Removed, *, dry_run: bool) -> Document:
    return {
        "apiVersion": f"subresources.{route.resource.group}/{route.resource.version}",
        "kind": REMOVAL_KIND,
        "metadata": {"name": route.name, "namespace": route.namespace},
        "status": {
            "replicas": done.count,
            "leaving": list(done.leaving),
            "alreadyLeaving": list(done.already),
            "dryRun": dry_run,
        },
    }


def _parsed(body: Document) -> tuple[tuple[Named, ...], bool, bool]:
    """The members, whenIdle and dryRun of a request."""
    given, when_idle, dry = body.get("targets"), body.get("whenIdle", False), body.get("dryRun", [])
    if not isinstance(given, list):
        raise BadRequest(_TARGETS)
    if len(given) > REMOVALS_MAX:
        raise BadRequest(f"targets: at most {REMOVALS_MAX} at a time")
    if not isinstance(when_idle, bool):
        raise BadRequest("whenIdle: must be true or false")
    if dry not in ([], ["All"]):
        raise BadRequest('dryRun: must be ["All"] or absent')
    return tuple(map(_named, given)), when_idle, bool(dry)


def _named(given: Any) -> Named:
    """A member: its name, or its name and uid."""
    if isinstance(given, str):
        return Named(name=given)
    name, uid = (given.get("name"), given.get("uid", "")) if isinstance(given, dict) else ("", "")
    if not isinstance(name, str) or not name or not isinstance(uid, str):
        raise BadRequest(_TARGETS)
    return Named(name=name, uid=uid)


_TARGETS = (
    'targets: give a list of names, such as {"targets": ["runners-3"]}, or of names and uids,'
    ' such as {"targets": [{"name": "runners-3", "uid": "…"}]}'
)
