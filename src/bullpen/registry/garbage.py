"""Garbage collection by owner references and of deleted namespaces.

An index of owners, dependents and namespaces, updated change by change. It covers all
objects in the store, by uid and by namespace. It knows only what it was told; it never
reads the store and never decides.

What is garbage: given an object and the state of its owners, what must happen to it? These
functions decide. They do not read the store and do not act: the collector gathers the inputs
and carries out the results.

The garbage collector: carries out these decisions while it runs. It follows
every change in the store, keeps an index of owners and dependents, and examines each object
that may have to be deleted. It is level-triggered: its actions depend on the state, not on
the changes it has seen, so it may stop and start again at any time. A deletion is decided
on the newest state of the object and of each of its owners, and carries that state's
version: in doubt, nothing is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from bullpen.api.paths import Document
from bullpen.api.resource import Resource
from bullpen.api.resources import Resources
from bullpen.errors import Conflict, Gone, LabError, NotFound
from bullpen.registry import namespaces
from bullpen.registry.metadata import FOREGROUND, ORPHAN
from bullpen.registry.namespaces import is_namespace
from bullpen.registry.options import DeleteOptions, Propagation
from bullpen.registry.registry import Edit, Registry
from bullpen.store.base import Verb, Watch


@dataclass(frozen=True, slots=True)
class Place:
    """A parsed store key."""

    resource: Resource
    namespace: str
    name: str

    @property
    def key(self) -> str:
        return self.resource.key(self.namespace, self.name)


class Kinship:
    def __init__(self, resources: Resources) -> None:
        self._resources = {resource.prefix: resource for resource in resources}
        self._namespaces = next(r.prefix for r in resources if is_namespace(r))
        self._nodes: dict[str, Node] = {}
        # Dicts instead of sets, because iteration must have a fixed order.
        self._dependents: dict[str, dict[str, None]] = {}
        self._keys: dict[str, str] = {}

    def suspects(self) -> Iterator[str]:
        """The keys of all objects that may have to be deleted, whatever has happened before."""
        for key, node in self._nodes.items():
            place = self.place(key)
            if node.owners or node.deleting or (place is not None and self.is_emptied(place)):
                yield key

    def place(self, key: str) -> Place | None:
        """The place of a key; None if it is not the key of an object."""
        group, plural, namespace, name = [*key.split("/", 3), "", "", ""][:4]
        resource = self._resources.get(f"{group}/{plural}/")
        return Place(resource, namespace, name) if resource and name else None

    def node(self, key: str) -> Node | None:
        return self._nodes.get(key)

    def find(self, uid: str) -> Place | None:
        """The place of the object with this uid."""
        key = self._keys.get(uid)
        return None if key is None else self.place(key)

    def dependents(self, uid: str) -> tuple[str, ...]:
        """The keys of all objects that name this owner."""
        return tuple(self._dependents.get(uid, ()))

    def is_emptied(self, place: Place) -> bool:
        """Whether the namespace of a place is terminating, and its contents with it."""
        if not place.resource.namespaced:
            return False
        node = self._nodes.get(f"{self._namespaces}/{place.namespace}")
        return node is not None and node.deleting

    def contents(self, namespace: str) -> tuple[str, ...]:
        """The keys of all objects in a namespace. Looks at all keys: namespaces rarely change."""
        return tuple(
            key
            for key in self._nodes
            if (place := self.place(key)) is not None
            and place.resource.namespaced
            and place.namespace == namespace
        )

    def put(self, key: str, value: bytes) -> tuple[str, ...]:
        """Add or update an object; returns the keys to examine because of it."""
        place = self.place(key)
        if place is None:
            return ()
        node, old = node_of(value), self._nodes.get(key)
        if node == old:
            return ()
        touched = self.remove(key) if old else ()
        self._nodes[key] = node
        self._keys[node.uid] = key
        for owner in node.owners:
            self._dependents.setdefault(owner.uid, {})[key] = None
        return tuple(dict.fromkeys((*touched, key, *self._kin(place, node))))

    def remove(self, key: str) -> tuple[str, ...]:
        """Remove an object; returns the keys to examine because of it."""
        place, node = self.place(key), self._nodes.pop(key, None)
        if place is None or node is None:
            return ()
        self._keys.pop(node.uid, None)
        for owner in node.owners:
            _discard(self._dependents, owner.uid, key)
        return self._kin(place, node)

    def _kin(self, place: Place, node: Node) -> tuple[str, ...]:
        """Objects that may have waited for this: terminating owners and namespace, dependents."""
        owners = tuple(self._keys[o.uid] for o in node.owners if o.uid in self._keys)
        if place.resource.namespaced:
            owners = (*owners, f"{self._namespaces}/{place.namespace}")
        going = (key for key in owners if key in self._nodes and self._nodes[key].deleting)
        inside = self.contents(place.name) if is_namespace(place.resource) else ()
        return (*going, *self.dependents(node.uid), *inside)


def _discard(index: dict[str, dict[str, None]], name: str, key: str) -> None:
    members = index.get(name, {})
    members.pop(key, None)
    if not members:
        index.pop(name, None)


class OwnerReference(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    block_owner_deletion: bool = False


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    deletion_timestamp: str = ""
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class _Stored(msgspec.Struct, frozen=True):
    metadata: _Metadata


_read = msgspec.json.Decoder(_Stored).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The part of an object that matters to garbage collection."""

    uid: str
    owners: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    deleting: bool = False

    @property
    def standing(self) -> Standing:
        """The state of this object as an owner."""
        if self.deleting and ORPHAN in self.finalizers:
            return Standing.ORPHANING
        if self.deleting and FOREGROUND in self.finalizers:
            return Standing.WAITING
        return Standing.SOLID

    def blocks(self, uid: str) -> bool:
        """Whether a foreground deletion of that owner waits for this object."""
        return any(owner.uid == uid and owner.block_owner_deletion for owner in self.owners)


class Standing(Enum):
    """The state of an owner."""

    SOLID = auto()
    """It exists and stays; an unknown state must count as the same."""

    WAITING = auto()
    """Waiting for its dependents to be deleted first."""

    ORPHANING = auto()
    """Waiting for its dependents, which stay, to drop their references."""

    ABSENT = auto()


@dataclass(frozen=True, slots=True)
class Collect:
    """Delete the object. Without a propagation, its own finalizers decide."""

    propagation: Propagation | None = None


@dataclass(frozen=True, slots=True)
class Disown:
    """Remove these owners from the object's references; other owners keep it."""

    uids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """The work of the finalizer is done."""

    finalizer: str


def node_of(value: bytes) -> Node:
    """Decode the node of a stored object, and no more of it."""
    found = _read(value).metadata
    return Node(
        uid=found.uid,
        owners=found.owner_references,
        finalizers=found.finalizers,
        deleting=bool(found.deletion_timestamp),
    )


def as_dependent(
    node: Node, standings: tuple[Standing, ...], dependents: tuple[Node, ...] = ()
) -> Collect | Disown | None:
    """What happens to an object because of its owners, given the state of each.

    References to owners that orphan their dependents are removed. Otherwise an owner that stays
    keeps the object, and references to the others are removed. If no owner stays, the object is
    deleted: in the foreground if an owner waits for it and it has dependents of its own, except
    in a cycle of waiting objects, which would never end.
    """
    if node.deleting or not node.owners:
        return None
    letting_go = _uids(node, standings, (Standing.ORPHANING,))
    if letting_go:
        return Disown(letting_go)
    if Standing.SOLID in standings:
        leaving = _uids(node, standings, (Standing.WAITING, Standing.ABSENT))
        return Disown(leaving) if leaving else None
    if Standing.WAITING in standings and dependents:
        circular = any(dependent.standing is Standing.WAITING for dependent in dependents)
        return Collect(Propagation.BACKGROUND if circular else Propagation.FOREGROUND)
    return Collect()


def as_owner(node: Node, dependents: tuple[Node, ...]) -> Release | None:
    """Whether an object that is being deleted has finished with its dependents."""
    if node.standing is Standing.ORPHANING:
        return None if dependents else Release(ORPHAN)
    if node.standing is Standing.WAITING:
        blocked = any(dependent.blocks(node.uid) for dependent in dependents)
        return None if blocked else Release(FOREGROUND)
    return None


def _uids(
    node: Node, standings: tuple[Standing, ...], which: tuple[Standing, ...]
) -> tuple[str, ...]:
    pairs = zip(node.owners, standings, strict=True)
    return tuple(owner.uid for owner, standing in pairs if standing in which)


def disowned(document: Document, uids: tuple[str, ...]) -> Document:
    """``document`` without references to these owners."""
    metadata: dict[str, Any] = dict(document["metadata"])
    kept = [r for r in metadata.pop("ownerReferences", None) or [] if r["uid"] not in uids]
    if kept:
        metadata["ownerReferences"] = kept
    return {**document, "metadata": metadata}


def released(document: Document, finalizer: str) -> Document:
    """``document`` without this finalizer."""
    metadata: dict[str, Any] = dict(document["metadata"])
    kept = [name for name in metadata.pop("finalizers", None) or [] if name != finalizer]
    if kept:
        metadata["finalizers"] = kept
    return {**document, "metadata": metadata}


log = logging.getLogger("bullpen.registry.garbage")

AT_ONCE_MAX = 64
"""Objects processed concurrently, so that their commits can share a sync."""

READ_AT_ONCE_MAX = 500
"""Objects in memory at once while the index is built."""

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
        self._kinship = Kinship(self._registry.resources)
        after = ""
        while True:
            # There is no await in between, so every step sees the same state.
            page = self._store.scan("", after=after, limit=READ_AT_ONCE_MAX)
            for entry in page.entries:
                self._learn(entry.key, entry.value)
            if not page.remaining:
                break
            after = page.entries[-1].key
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
