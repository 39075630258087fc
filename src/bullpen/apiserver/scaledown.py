"""The scaledownwith subresource: removes members of a pool by name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TypeVar

from bullpen.api import codec
from bullpen.api.exporter import Exporter
from bullpen.api.fields import Kind
from bullpen.api.paths import Document, decode
from bullpen.api.resources import RESOURCES
from bullpen.api.virtualtarget import VirtualTarget
from bullpen.api.virtualtargetpool import REMOVALS_MAX, VirtualTargetPool
from bullpen.apiserver.discovery import REMOVAL_KIND
from bullpen.apiserver.routes import ObjectRoute
from bullpen.core.pools import named_removal
from bullpen.core.pools.named_removal import Removed
from bullpen.errors import BadRequest, Conflict, NotFound
from bullpen.registry.options import WriteOptions
from bullpen.registry.registry import Registry

K = TypeVar("K", bound=Kind)

ATTEMPTS_MAX = 10
"""Writes that may conflict with the controller or an autoscaler before the caller is told."""

PAUSE_SECONDS = 0.01
MANAGER = "scaledownwith"


class ScaleDowns:
    """Answers requests, one per pool at a time."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._busy: dict[tuple[str, str], asyncio.Lock] = {}

    async def answer(self, route: ObjectRoute, body: Document, *, dry_run: bool) -> Document:
        """Remove the members that ``body`` names, and lower the count by as many."""
        names, when_idle, dry = _parsed(body)
        key = route.namespace or "", route.name
        async with self._busy.setdefault(key, asyncio.Lock()):
            for attempt in range(ATTEMPTS_MAX):
                done = self._decided(route, names, when_idle=when_idle)
                if not done.leaving or dry_run or dry or await self._written(route, done.pool):
                    return _answer(route, done, dry_run=dry_run or dry)
                await asyncio.sleep(PAUSE_SECONDS * 2**attempt)
        raise Conflict(f"{route.name} changed {ATTEMPTS_MAX} times meanwhile; try again")

    def _decided(self, route: ObjectRoute, names: tuple[str, ...], *, when_idle: bool) -> Removed:
        namespace = route.namespace or ""
        before = decode(self._registry.get(route.resource, namespace, route.name))
        pool = codec.decode(VirtualTargetPool, before)
        return named_removal.removed(
            pool,
            names,
            self._targets(namespace, names),
            leases=self._leases(namespace, names),
            when_idle=when_idle,
        )

    async def _written(self, route: ObjectRoute, pool: VirtualTargetPool) -> bool:
        """Write the removals and the count at once; False if the pool has changed since."""
        options = WriteOptions(field_manager=MANAGER)
        try:
            await self._registry.update(
                route.resource, route.namespace or "", route.name, codec.encode(pool), options
            )
        except Conflict:
            return False
        return True

    def _targets(self, namespace: str, names: tuple[str, ...]) -> Mapping[str, VirtualTarget]:
        found = self._found(VirtualTarget, namespace, names)
        return {target.metadata.name: target for target in found}

    def _leases(self, namespace: str, names: tuple[str, ...]) -> Mapping[str, str]:
        """The leases that hold the targets, from their Exporters, where they are assigned."""
        found = self._found(Exporter, namespace, names)
        held = ((e.metadata.name, e.status.lease_ref) for e in found)
        return {name: lease.name for name, lease in held if lease is not None}

    def _found(self, kind: type[K], namespace: str, names: tuple[str, ...]) -> Iterator[K]:
        """The objects of these names that exist."""
        resource = RESOURCES.of(kind)
        for name in names:
            try:
                document = decode(self._registry.get(resource, namespace, name))
            except NotFound:
                continue
            yield codec.decode(kind, document)


def _answer(route: ObjectRoute, done: Removed, *, dry_run: bool) -> Document:
    return {
        "apiVersion": f"subresources.{route.resource.group}/{route.resource.version}",
        "kind": REMOVAL_KIND,
        "metadata": {"name": route.name, "namespace": route.namespace},
        "status": {
            "replicas": done.pool.spec.replicas,
            "leaving": list(done.leaving),
            "alreadyLeaving": list(done.already),
            "dryRun": dry_run,
        },
    }


def _parsed(body: Document) -> tuple[tuple[str, ...], bool, bool]:
    """The names, whenIdle and dryRun of a request."""
    names, when_idle, dry = body.get("targets"), body.get("whenIdle", False), body.get("dryRun", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadRequest('targets: give a list of names, such as {"targets": ["runners-3"]}')
    if len(names) > REMOVALS_MAX:
        raise BadRequest(f"targets: at most {REMOVALS_MAX} at a time")
    if not isinstance(when_idle, bool):
        raise BadRequest("whenIdle: must be true or false")
    if dry not in ([], ["All"]):
        raise BadRequest('dryRun: must be ["All"] or absent')
    return tuple(names), when_idle, bool(dry)
