"""An index of owners, dependents and namespaces, updated change by change.

It covers all objects in the store, by uid and by namespace. It knows only what it was told;
it never reads the store and never decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bullpen.api.resources import Resource, Resources
from bullpen.registry.namespaces import is_namespace
from bullpen.registry.ownership import Node, node_of


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
        self._contents: dict[str, dict[str, None]] = {}
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
        """The keys of all objects in a namespace."""
        return tuple(self._contents.get(namespace, ()))

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
        if place.resource.namespaced:
            self._contents.setdefault(place.namespace, {})[key] = None
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
        if place.resource.namespaced:
            _discard(self._contents, place.namespace, key)
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
