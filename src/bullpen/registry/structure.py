"""How a schema composes values: which merge, and which are atomic.

Reads the structural OpenAPI schema of a resource with its ``x-kubernetes-list-type``,
``-list-map-keys`` and ``-map-type`` extensions. By default, as in Kubernetes, objects merge
by key and lists are atomic. Nothing here validates values.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, TypeAlias

from bullpen.registry.fields import field_element, key_element, value_element

Schema: TypeAlias = Mapping[str, Any]

UNKNOWN: Schema = {}


class Shape(Enum):
    LEAF = auto()
    """Replaced as a whole: scalars, nulls, atomic lists and atomic maps."""

    MAP = auto()
    LIST = auto()
    """A list whose items have an identity: ``list-type`` map or set."""


def shape(schema: Schema, value: object) -> Shape:
    if isinstance(value, dict):
        return Shape.LEAF if schema.get("x-kubernetes-map-type") == "atomic" else Shape.MAP
    if isinstance(value, list) and elements(schema, value) is not None:
        return Shape.LIST
    return Shape.LEAF


def is_named(schema: Schema, key: str) -> bool:
    """Whether ``key`` is a field of a struct rather than an entry of a map."""
    return key in schema.get("properties", UNKNOWN)


def field_schema(schema: Schema, key: str) -> Schema:
    found: object = schema.get("properties", UNKNOWN).get(key)
    if found is None:
        found = schema.get("additionalProperties")
    return found if isinstance(found, dict) else UNKNOWN


def item_schema(schema: Schema) -> Schema:
    found = schema.get("items")
    return found if isinstance(found, dict) else UNKNOWN


def element_schema(schema: Schema, element: str) -> Schema:
    """The schema below a path element of a field set."""
    return field_schema(schema, element[2:]) if element[:2] == "f:" else item_schema(schema)


def elements(schema: Schema, items: list[Any]) -> list[str] | None:
    """The identity of each item; None for an atomic list.

    A list that should have identities but repeats one, or whose items lack their keys, is
    treated as atomic too: it can be replaced, not merged.
    """
    kind = schema.get("x-kubernetes-list-type")
    if kind == "map":
        found = [_key(schema, item) for item in items]
    elif kind == "set":
        found = [
            None if isinstance(i, dict | list) or i is None else value_element(i) for i in items
        ]
    else:
        return None
    known = [element for element in found if element is not None]
    return known if len(set(known)) == len(items) else None


def children(schema: Schema, value: Any) -> dict[str, Any]:
    """The direct children of a MAP or LIST, by path element, in order."""
    if isinstance(value, dict):
        return {field_element(key): item for key, item in value.items()}
    return dict(zip(elements(schema, value) or (), value, strict=True))


def _key(schema: Schema, item: object) -> str | None:
    if not isinstance(item, dict):
        return None
    properties = item_schema(schema).get("properties", UNKNOWN)
    keys: dict[str, object] = {}
    for name in schema.get("x-kubernetes-list-map-keys", ()):
        value = item.get(name, properties.get(name, UNKNOWN).get("default"))
        if value is not None:
            keys[name] = value
    return key_element(keys) if keys else None
