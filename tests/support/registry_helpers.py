"""Words the registry tests share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from bullpen.api.paths import Document, decode
from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES
from bullpen.errors import NotFound
from bullpen.kit.clock import VirtualClock
from bullpen.kit.ids import RandomIds
from bullpen.registry.garbage import GarbageCollector
from bullpen.registry.options import Deleted, DeleteOptions, PatchType, WriteOptions
from bullpen.registry.registry import Registry
from bullpen.store.base import Store

JUMPSTARTER = "jumpstarter.dev/v1alpha1"
VIRTUAL = "virtualtarget.jumpstarter.dev/v1alpha1"


def resource(api_version: str, kind: str) -> Resource:
    found = RESOURCES.of_kind(api_version, kind)
    assert found is not None
    return found


LEASE = resource(JUMPSTARTER, "Lease")
EXPORTER = resource(JUMPSTARTER, "Exporter")
SET = resource(VIRTUAL, "ExporterSet")
SECRET = resource("v1", "Secret")
CONFIG_MAP = resource("v1", "ConfigMap")
NAMESPACE = resource("v1", "Namespace")
EVENT = resource("v1", "Event")


def document(of: Resource, name: str = "", **parts: Any) -> Document:
    """A minimal valid object; ``parts`` are its other top-level fields."""
    metadata = {**({"name": name} if name else {}), **parts.pop("metadata", {})}
    return {"apiVersion": of.api_version, "kind": of.kind, "metadata": metadata, **parts}


def lease(name: str = "", *, duration: str = "1h", **parts: Any) -> Document:
    spec = {
        "clientRef": {"name": "me"},
        "selector": {"matchLabels": {"board": "rpi4"}},
        "duration": duration,
    }
    return document(LEASE, name, **{"spec": spec, **parts})


def exporter_set(name: str, **spec: Any) -> Document:
    given = {
        "virtualTargetClassName": "qemu",
        "selector": {"matchLabels": {"board": "qemu"}},
        "template": {"metadata": {"labels": {"board": "qemu"}}, "spec": {"drivers": []}},
        **spec,
    }
    return document(SET, name, spec=given)


def secret(name: str, **parts: Any) -> Document:
    return document(SECRET, name, **parts)


def owned_by(*owners: Document, blocking: bool = False) -> Document:
    """Metadata that names these owners."""
    return {
        "ownerReferences": [
            {
                "apiVersion": owner["apiVersion"],
                "kind": owner["kind"],
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                **({"blockOwnerDeletion": True} if blocking else {}),
            }
            for owner in owners
        ]
    }


class Lab:
    """A registry over some store, with documents in and out."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = VirtualClock()
        self.registry = Registry(store, clock=self.clock, ids=RandomIds(random.Random(7)))

    async def create(self, of: Resource, given: Document, **options: Any) -> Document:
        namespace = (given["metadata"].get("namespace") or "default") if of.namespaced else ""
        written = await self.registry.create(of, namespace, given, WriteOptions(**options))
        return decode(written.value)

    async def update(
        self, of: Resource, given: Document, name: str = "", **options: Any
    ) -> Document:
        """Replace an object, based on its newest version unless ``given`` names one."""
        name = name or given["metadata"]["name"]
        namespace = given["metadata"].get("namespace", "default") if of.namespaced else ""
        head = self.store.head(of.key(namespace, name))
        if of.versioned_updates and head is not None and options.get("subresource") != "scale":
            version = decode(head.value)["metadata"]["resourceVersion"]
            given = {**given, "metadata": {"resourceVersion": version, **given["metadata"]}}
        written = await self.registry.update(of, namespace, name, given, WriteOptions(**options))
        return decode(written.value)

    async def patch(
        self, of: Resource, name: str, kind: PatchType, patch: Any, **options: Any
    ) -> Document:
        namespace = "default" if of.namespaced else ""
        given = WriteOptions(**options)
        return decode((await self.registry.patch(of, namespace, name, kind, patch, given)).value)

    async def apply(self, of: Resource, config: Document, **options: Any) -> Document:
        options.setdefault("field_manager", "applier")
        name = config["metadata"]["name"]
        return await self.patch(of, name, PatchType.APPLY, config, **options)

    async def delete(
        self, of: Resource, name: str, *, namespace: str = "default", **options: Any
    ) -> Deleted:
        place = namespace if of.namespaced else ""
        return await self.registry.delete(of, place, name, DeleteOptions(**options))

    def get(self, of: Resource, name: str, *, namespace: str = "default") -> Document:
        return decode(self.registry.get(of, namespace if of.namespaced else "", name))

    def exists(self, of: Resource, name: str, *, namespace: str = "default") -> bool:
        try:
            self.get(of, name, namespace=namespace)
        except NotFound:
            return False
        return True

    async def collect(self, until: Callable[[], bool]) -> None:
        """Run a collector until something holds."""
        collector = GarbageCollector(self.registry)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(collector.run())
            await self.happens(until)
            running.cancel()

    async def happens(self, until: Callable[[], bool]) -> None:
        watch = self.store.watch("", since=self.store.revision)
        while not until():
            await watch.next()
        watch.close()
