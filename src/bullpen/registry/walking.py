"""Walks over typed documents: their fields, their differences, their merge.

Server-side apply and field ownership are built from these steps. They follow a schema's
``structure``, take and return plain documents and field sets, and modify neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from bullpen.registry import fields
from bullpen.registry.fields import SELF, FieldSet, Path, from_paths
from bullpen.registry.structure import (
    Schema,
    Shape,
    children,
    element_schema,
    elements,
    field_schema,
    is_named,
    item_schema,
    shape,
)

_sorted = msgspec.json.Encoder(order="sorted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The differences between two documents. No path is in two of the sets."""

    removed: FieldSet
    modified: FieldSet
    added: FieldSet

    @property
    def changed(self) -> FieldSet:
        return fields.union(self.modified, self.added)


def same(left: object, right: object) -> bool:
    """Equality as in JSON: unlike in Python, ``true`` is not 1 nor 1 ``1.0``."""
    if left is right:
        return True
    if left != right:
        return False
    if isinstance(left, dict | list):
        return _sorted.encode(left) == _sorted.encode(right)
    return type(left) is type(right)


def field_set(schema: Schema, value: Any) -> FieldSet:
    """The fields an applied configuration claims.

    These are leaves, empty containers, and the items of lists and maps; a struct is claimed
    only through its fields, so that two managers can share it.
    """
    result: dict[str, FieldSet] = {}
    for element, item in children(schema, value).items():
        below = element_schema(schema, element)
        kind = shape(below, item)
        member = (
            kind is Shape.LEAF
            or not item
            or not (element[:2] == "f:" and is_named(schema, element[2:]))
        )
        inner = fields.EMPTY if kind is Shape.LEAF else field_set(below, item)
        entry = fields.node(member=member, children=inner)
        assert entry is not None, "what is not empty has something to claim"
        result[element] = entry
    return result


def with_structs(schema: Schema, claimed: FieldSet) -> FieldSet:
    """``claimed`` with every struct that has claimed fields as a member itself."""
    result: dict[str, FieldSet] = {}
    for element in claimed:
        if element == SELF:
            continue
        below = with_structs(element_schema(schema, element), fields.below(claimed, element))
        named = element[:2] == "f:" and is_named(schema, element[2:])
        member = fields.is_member(claimed, element) or (named and bool(below))
        entry = fields.node(member=member, children=below)
        assert entry is not None, "every element of a set is a member or has members below"
        result[element] = entry
    return result


def remove(schema: Schema, value: Any, unwanted: FieldSet) -> Any:
    """``value`` without the members of ``unwanted`` and everything inside them."""
    kind = shape(schema, value)
    if kind is Shape.LEAF or not unwanted:
        return value
    kept = {
        element: remove(element_schema(schema, element), item, fields.below(unwanted, element))
        for element, item in children(schema, value).items()
        if not fields.is_member(unwanted, element)
    }
    if kind is Shape.MAP:
        return {element[2:]: item for element, item in kept.items()}
    return list(kept.values())


def merge(schema: Schema, live: Any, config: Any) -> Any:
    """``live`` with all values of ``config``; nothing is removed."""
    kind = shape(schema, config)
    if kind is not Shape.LEAF and (live is None or shape(schema, live) is kind):
        if kind is Shape.MAP:
            return _merge_maps(schema, live or {}, config)
        return _merge_lists(schema, live or [], config)
    # An explicit null does not remove what others put into a map or list.
    if config is None and live and shape(schema, live) is not Shape.LEAF:
        return live
    return config


def compare(schema: Schema, old: Any, new: Any) -> Comparison:
    """How ``new`` differs from ``old``, as the smallest units that merge."""
    found = _Found()
    if not same(old, new):
        _compare(schema, (), old, new, found)
    return Comparison(
        removed=from_paths(found.removed),
        modified=from_paths(found.modified),
        added=from_paths(found.added),
    )


@dataclass(slots=True)
class _Found:
    removed: list[Path] = field(default_factory=list)
    modified: list[Path] = field(default_factory=list)
    added: list[Path] = field(default_factory=list)


def _compare(schema: Schema, path: Path, old: Any, new: Any, found: _Found) -> None:
    """Record the differences of two unequal values."""
    before, after = shape(schema, old), shape(schema, new)
    if before is after and before is not Shape.LEAF:
        _compare_inside(schema, path, old, new, found)
        return
    # Between null and a container, only the contents were added or removed.
    filled = old is None and after is not Shape.LEAF and bool(new)
    emptied = new is None and before is not Shape.LEAF and bool(old)
    if not filled and not emptied:
        found.modified.append(path)
    _collect_inside(schema, path, old, found.removed)
    _collect_inside(schema, path, new, found.added)


def _compare_inside(schema: Schema, path: Path, old: Any, new: Any, found: _Found) -> None:
    if isinstance(old, dict):
        # Most of a document is unchanged; nothing is allocated for that part.
        left = {k: v for k, v in old.items() if k not in new or not same(v, new[k])}
        right = {k: v for k, v in new.items() if k in left or k not in old}
    else:
        left, right = old, new
    _compare_children(schema, path, children(schema, left), children(schema, right), found)


def _compare_children(
    schema: Schema, path: Path, left: dict[str, Any], right: dict[str, Any], found: _Found
) -> None:
    for element, item in left.items():
        if element not in right:
            below = element_schema(schema, element)
            _collect(below, (*path, element), item, found.removed)
        elif not same(item, right[element]):
            below = element_schema(schema, element)
            _compare(below, (*path, element), item, right[element], found)
    for element, item in right.items():
        if element not in left:
            below = element_schema(schema, element)
            _collect(below, (*path, element), item, found.added)


def _collect(schema: Schema, path: Path, value: Any, found: list[Path]) -> None:
    """Record a value that was added or removed as a whole, with everything inside."""
    found.append(path)
    _collect_inside(schema, path, value, found)


def _collect_inside(schema: Schema, path: Path, value: Any, found: list[Path]) -> None:
    if isinstance(value, dict | list) and shape(schema, value) is not Shape.LEAF:
        for element, item in children(schema, value).items():
            _collect(element_schema(schema, element), (*path, element), item, found)


def _merge_maps(schema: Schema, live: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    result = dict(live)
    for key, value in config.items():
        result[key] = merge(field_schema(schema, key), live[key], value) if key in live else value
    return result


def _merge_lists(schema: Schema, live: list[Any], config: list[Any]) -> list[Any]:
    left, right = elements(schema, live), elements(schema, config)
    assert left is not None, "only lists with identities are merged"
    assert right is not None, "only lists with identities are merged"
    old = dict(zip(left, live, strict=True))
    new = dict(zip(right, config, strict=True))
    below = item_schema(schema)
    return [
        merge(below, old[element], new[element])
        if element in old and element in new
        else new.get(element, old.get(element))
        for element in _interleave(left, right)
    ]


def _interleave(left: list[str], right: list[str]) -> list[str]:
    """The order of ``right``; items only in ``left`` stay before their successors."""
    known, wanted = set(left), set(right)
    shared = iter([element for element in right if element in known])
    following = next(shared, None)
    result: list[str] = []
    position = 0
    for element in right:
        while position < len(left) and left[position] != following:
            if left[position] not in wanted:
                result.append(left[position])
            position += 1
        result.append(element)
        if element == following:
            following = next(shared, None)
    result.extend(rest for rest in left[position:] if rest not in wanted)
    return result
