"""Fields of documents: sets of fields, and how a schema composes them.

Sets of fields, in the format of ``managedFields`` (fieldsV1). A set is a tree of path
elements: ``f:name`` is a field, ``k:{…}`` the item of a list with that key, ``v:…`` the
item of a set with that value. An element without children is a member; an element with
children is a member only if ``.`` is among them. The trees are immutable: every operation
returns a new one that shares what did not change. Nothing here knows a schema.

How a schema composes values: which merge, and which are atomic. Reads the structural
OpenAPI schema of a resource with its ``x-kubernetes-list-type``, ``-list-map-keys`` and
``-map-type`` extensions. By default, as in Kubernetes, objects merge by key and lists are
atomic. Nothing here validates values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import Any, TypeAlias

import msgspec

FieldSet: TypeAlias = Mapping[str, "FieldSet"]
_Tree: TypeAlias = dict[str, "_Tree"]
Path: TypeAlias = tuple[str, ...]

EMPTY: FieldSet = {}
SELF = "."


def field_element(name: str) -> str:
    return f"f:{name}"


def value_element(value: object) -> str:
    return f"v:{msgspec.json.encode(value).decode()}"


def key_element(keys: Mapping[str, object]) -> str:
    return f"k:{msgspec.json.encode(dict(keys), order='sorted').decode()}"


def from_paths(paths: Iterable[Path]) -> FieldSet:
    """The set whose members are exactly ``paths``, none of which is empty."""
    result: _Tree = {}
    for path in paths:
        _insert(result, path)
    return result


def members(fields: FieldSet) -> Iterator[Path]:
    """Every path that is a member, parents before children."""
    for element, below in fields.items():
        if element == SELF:
            continue
        if is_member(fields, element):
            yield (element,)
        for path in members(below):
            yield (element, *path)


def is_member(fields: FieldSet, element: str) -> bool:
    below = fields.get(element)
    return below is not None and (not below or SELF in below)


def has(fields: FieldSet, path: Path) -> bool:
    """Whether ``path`` itself is a member."""
    parent = descend(fields, path[:-1])
    return bool(path) and is_member(parent, path[-1])


def descend(fields: FieldSet, path: Path) -> FieldSet:
    """The subset below ``path``; may be empty."""
    for element in path:
        fields = fields.get(element, EMPTY)
    return fields


def below(fields: FieldSet, element: str) -> FieldSet:
    """The subset below ``element``, without the mark of its own membership."""
    found = fields.get(element, EMPTY)
    return {key: value for key, value in found.items() if key != SELF} if SELF in found else found


def node(*, member: bool, children: FieldSet) -> FieldSet | None:
    """The encoding of an element; None if it is neither a member nor has children."""
    if not children:
        return EMPTY if member else None
    return {SELF: EMPTY, **children} if member else children


def union(left: FieldSet, right: FieldSet) -> FieldSet:
    if not left or not right:
        return left or right
    result = dict(left)
    for element in right:
        if element not in left:
            result[element] = right[element]
            continue
        merged = node(
            member=is_member(left, element) or is_member(right, element),
            children=union(below(left, element), below(right, element)),
        )
        assert merged is not None, "an element of either set is an element of their union"
        result[element] = merged
    return result


def intersection(left: FieldSet, right: FieldSet) -> FieldSet:
    result: dict[str, FieldSet] = {}
    for element in left:
        if element not in right:
            continue
        common = node(
            member=is_member(left, element) and is_member(right, element),
            children=intersection(below(left, element), below(right, element)),
        )
        if common is not None:
            result[element] = common
    return result


def difference(left: FieldSet, right: FieldSet) -> FieldSet:
    """The members of ``left`` that are not members of ``right``, path by path.

    Removing a parent leaves its children, and vice versa.
    """
    result: dict[str, FieldSet] = {}
    for element, value in left.items():
        if element not in right:
            result[element] = value
            continue
        rest = node(
            member=is_member(left, element) and not is_member(right, element),
            children=difference(below(left, element), below(right, element)),
        )
        if rest is not None:
            result[element] = rest
    return result


def display(path: Path) -> str:
    """A path as Kubernetes prints it in conflicts: ``.spec.ports[name="web"].port``."""
    return "".join(_display_element(element) for element in path)


def is_valid(candidate: object) -> bool:
    """Whether ``candidate`` has the form of a field set."""
    if not isinstance(candidate, dict):
        return False
    return all(
        (key == SELF or (key[:2] in ("f:", "k:", "v:", "i:") and _readable(key)))
        and is_valid(value)
        for key, value in candidate.items()
    )


def _insert(tree: _Tree, path: Path) -> None:
    """Make ``path`` a member of a tree under construction."""
    for element in path[:-1]:
        below = tree.get(element)
        if below is None:
            below = tree[element] = {}
        elif not below:  # so far a member without children
            below[SELF] = {}
        tree = below
    below = tree.setdefault(path[-1], {})
    if below and SELF not in below:
        tree[path[-1]] = {SELF: {}, **below}


def _readable(element: str) -> bool:
    if element[0] == "f":
        return True
    try:
        value = msgspec.json.decode(element[2:])
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(value, dict) if element[0] == "k" else True


def _display_element(element: str) -> str:
    kind, text = element[0], element[2:]
    if kind == "f":
        return f".{text}"
    if kind == "v":
        return f"[={text}]"
    if kind == "i":
        return f"[{text}]"
    keys = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    return "[" + ",".join(f"{name}={bytes(raw).decode()}" for name, raw in keys.items()) + "]"


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
