"""The garbage collector: carries out the decisions of ``ownership`` while it runs.

It follows every change in the store, keeps an index of owners and dependents, and examines
each object that may have to be deleted. It is level-triggered: its actions depend on the
state, not on the changes it has seen, so it may stop and start again at any time. A
deletion is decided on the newest state of the object and of each of its owners, and carries
that state's version: in doubt, nothing is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from itertools import islice

from bullpen.errors import Conflict, Gone, LabError, NotFound
from bullpen.registry import namespaces
from bullpen.registry.kinship import Kinship, Place
from bullpen.registry.options import DeleteOptions
from bullpen.registry.ownership import (
    Collect,
    Disown,
    Node,
    OwnerReference,
    Standing,
    as_dependent,
    as_owner,
    disowned,
    node_of,
    released,
)
from bullpen.registry.registry import Edit, Registry
from bullpen.store.base import Verb, Watch

log = logging.getLogger("bullpen.registry.garbage")

AT_ONCE_MAX = 64
"""Objects processed concurrently, so that their commits can share a sync."""

RETRY_SECONDS = 5.0
"""Delay of a retry after a failure, if no change comes first."""


class GarbageCollector:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._store = registry.store
        self._kinship = Kinship(registry.resources)
        # Each key once, so never longer than the index, and in order of arrival.
        self._due: dict[str, None] = {}
        self._failed: dict[str, None] = {}
        self._retry_at: float | None = None
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Collect until cancelled; raises ``Unavailable``, in a group, once the store is closed."""
        while True:
            changes = self._start()
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._follow(changes))
                    tasks.create_task(self._work())
            except* Gone:
                log.info("garbage collector fell behind and lists again", extra={"key": ""})
            finally:
                changes.close()

    def _start(self) -> Watch:
        """Index all objects, and examine those that have owners or are being deleted."""
        page = self._store.scan("")
        self._kinship = Kinship(self._registry.resources)
        for entry in page.entries:
            self._learn(entry.key, entry.value)
        self._failed.clear()
        self._retry_at = None
        self._due = dict.fromkeys(self._kinship.suspects())
        self._woken.set()
        return self._store.watch("", since=page.revision)

    async def _follow(self, changes: Watch) -> None:
        while True:
            for change in await changes.next():
                if change.verb is Verb.DELETED:
                    touched = self._kinship.remove(change.key)
                else:
                    touched = self._learn(change.key, change.value)
                self._due.update(dict.fromkeys(touched))
            if self._due:
                self._woken.set()

    def _learn(self, key: str, value: bytes) -> tuple[str, ...]:
        """Add an object to the index; returns the keys to examine."""
        try:
            return tuple(self._kinship.put(key, value))
        except Exception:
            # An object that cannot be indexed is never collected; the others still are.
            log.exception("object not indexed", extra={"key": key})
            return ()

    async def _work(self) -> None:
        while True:
            await self._wait()
            while self._due:
                some = tuple(islice(self._due, AT_ONCE_MAX))
                for key in some:
                    del self._due[key]
                async with asyncio.TaskGroup() as tasks:
                    for key in some:
                        tasks.create_task(self._look_after(key))

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout_at(self._retry_at):
                await self._woken.wait()
        except TimeoutError:
            self._due.update(self._failed)
            self._failed.clear()
            self._retry_at = None
        self._woken.clear()

    async def _look_after(self, key: str) -> None:
        place = self._kinship.place(key)
        if place is None:
            return
        try:
            await self._let_go(place)
            await self._settle(place)
        except LabError as error:
            # After a conflict, the conflicting change will be delivered, unless that write fails.
            if not isinstance(error, Conflict | NotFound):
                log.warning("garbage collection delayed", extra={"key": key, "why": str(error)})
            self._retry(key)
        except Exception:
            log.exception("garbage collection of an object failed", extra={"key": key})
            self._retry(key)

    def _retry(self, key: str) -> None:
        self._failed[key] = None
        self._retry_at = asyncio.get_running_loop().time() + RETRY_SECONDS

    async def _let_go(self, place: Place) -> None:
        """Remove our finalizers from an object that is being deleted, if their work is done.

        Decided on the index alone: it has seen the deletion begin, and with it every dependent that
        existed before.
        """
        node = self._kinship.node(place.key)
        if node is None or not node.deleting:
            return
        if namespaces.is_namespace(place.resource) and self._is_empty(place.name):
            await self._edit(place, namespaces.released)
        done = as_owner(node, self._dependents(node))
        if done:
            await self._edit(place, partial(released, finalizer=done.finalizer))

    async def _settle(self, place: Place) -> None:
        """Delete an object or remove its owner references, as its owners and namespace require.

        Decided on the durable state. There is no await between the read and the write, which
        carries the version that was read.
        """
        entry = self._store.get(place.key)
        if entry is None:
            return
        node = node_of(entry.value)
        match self._step(place, node):
            case Collect(propagation):
                options = DeleteOptions(
                    propagation=propagation, uid=node.uid, resource_version=str(entry.revision)
                )
                await self._registry.delete(place.resource, place.namespace, place.name, options)
            case Disown(uids):
                await self._edit(place, partial(disowned, uids=uids))
            case None:
                return

    def _step(self, place: Place, node: Node) -> Collect | Disown | None:
        if self._kinship.is_emptied(place):
            return None if node.deleting else Collect()
        standings = tuple(self._standing(place, owner) for owner in node.owners)
        return as_dependent(node, standings, self._dependents(node))

    def _standing(self, place: Place, owner: OwnerReference) -> Standing:
        resource = self._registry.resources.of_kind(owner.api_version, owner.kind)
        if resource is None or (resource.namespaced and not place.resource.namespaced):
            # An unserved kind, or an owner without a namespace: its state is unknown.
            return Standing.SOLID
        found = self._kinship.find(owner.uid)
        if found is None or found.namespace not in ("", place.namespace):
            found = Place(resource, place.namespace if resource.namespaced else "", owner.name)
        entry = self._store.get(found.key)
        node = node_of(entry.value) if entry else None
        return node.standing if node and node.uid == owner.uid else Standing.ABSENT

    def _is_empty(self, namespace: str) -> bool:
        """Nothing can be created in a terminating namespace, so an empty one stays empty."""
        if self._kinship.contents(namespace):
            return False
        spaced = (r.prefix for r in self._registry.resources if r.namespaced)
        return not any(self._store.scan(f"{p}{namespace}/", limit=1).entries for p in spaced)

    def _dependents(self, node: Node) -> tuple[Node, ...]:
        found = (self._kinship.node(key) for key in self._kinship.dependents(node.uid))
        return tuple(dependent for dependent in found if dependent is not None)

    async def _edit(self, place: Place, edit: Edit) -> None:
        await self._registry.edit(place.resource, place.namespace, place.name, edit)
