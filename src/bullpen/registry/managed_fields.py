"""Field ownership: differences and merges of typed documents, and who claims which field.

Walks over typed documents: their fields, their differences, their merge. Server-side apply
and field ownership are built from these steps. They follow a schema's ``structure``, take
and return plain documents and field sets, and modify neither.

Field managers: the claims kept in ``metadata.managedFields``. A claim belongs to a manager
doing one operation on one subresource. An applier is one claimant whatever version it uses;
an updater is one claimant per version, as in Kubernetes. Everything here is pure; ``apply``
builds on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from bullpen.registry import fields
from bullpen.registry.fields import (
    EMPTY,
    SELF,
    FieldSet,
    Path,
    Schema,
    Shape,
    children,
    element_schema,
    elements,
    field_schema,
    from_paths,
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


UPDATERS_MAX = 10
"""Separate update claims on one object; older ones are merged into one."""

ANCIENT = "ancient-changes"
UNKNOWN_MANAGER = "unknown"

UNMANAGED: FieldSet = from_paths(
    [
        ("f:apiVersion",),
        ("f:kind",),
        ("f:metadata",),
        *(
            ("f:metadata", f"f:{name}")
            for name in (
                "creationTimestamp",
                "deletionGracePeriodSeconds",
                "deletionTimestamp",
                "generation",
                "managedFields",
                "name",
                "namespace",
                "resourceVersion",
                "selfLink",
                "uid",
            )
        ),
    ]
)
"""Fields that identify an object or belong to the server, and so to no manager."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    manager: str
    api_version: str
    applied: bool = False
    subresource: str = ""

    def is_same(self, other: Claimant) -> bool:
        return (
            self.manager == other.manager
            and self.applied is other.applied
            and self.subresource == other.subresource
            and (self.applied or self.api_version == other.api_version)
        )

    def __str__(self) -> str:
        text = f'"{self.manager}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return text if self.applied else f"{text} using {self.api_version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    claimant: Claimant
    fields: FieldSet
    time: str = ""


Claims = tuple[Claim, ...]


def read(entries: object) -> Claims:
    """The claims in ``managedFields``; none if it is absent or malformed."""
    if not isinstance(entries, list):
        return ()
    claims = [_claim(entry) for entry in entries]
    known = tuple(claim for claim in claims if claim is not None)
    return known if len(known) == len(claims) else ()


def write(claims: Claims) -> list[dict[str, Any]]:
    """``managedFields`` for ``claims``, in the order Kubernetes keeps it."""
    return [_entry(claim) for claim in sorted(claims, key=_order)]


def is_well_formed(entries: object) -> bool:
    """Whether a caller's ``managedFields`` can be used as they are."""
    claims = read(entries)
    return bool(claims) and all(fields.is_valid(claim.fields) for claim in claims)


def updated(claims: Claims, change: Comparison, claimant: Claimant, *, time: str) -> Claims:
    """The claims after ``change`` by ``claimant``, which owns what it set.

    Removed fields have no owner any more.
    """
    changed = change.changed
    taken = fields.difference(changed, UNMANAGED)
    if not taken and not change.removed:
        return claims
    lost = fields.union(changed, change.removed)
    rest = tuple(_without(claim, lost) for claim in claims)
    if taken:
        own = find(rest, claimant)
        held = own.fields if own else EMPTY
        mine = Claim(claimant=claimant, fields=fields.union(held, taken), time=time)
        rest = put(rest, mine)
    return _capped(tuple(claim for claim in rest if claim.fields))


def find(claims: Claims, claimant: Claimant) -> Claim | None:
    return next((claim for claim in claims if claim.claimant.is_same(claimant)), None)


def put(claims: Claims, claim: Claim) -> Claims:
    """``claims`` with the claimant's claim replaced, or added."""
    others = (other for other in claims if not other.claimant.is_same(claim.claimant))
    return (*others, claim)


def all_fields(claims: Iterable[Claim]) -> FieldSet:
    result = EMPTY
    for claim in claims:
        result = fields.union(result, claim.fields)
    return result


def _without(claim: Claim, lost: FieldSet) -> Claim:
    if not fields.intersection(lost, claim.fields):
        return claim
    return replace(claim, fields=fields.difference(claim.fields, lost))


def _capped(claims: Claims) -> Claims:
    """Merge the oldest updates into one claim until the limit is met."""
    if len(claims) <= UPDATERS_MAX:
        return claims
    updates = sorted((claim for claim in claims if not claim.claimant.applied), key=_age)
    excess = len(updates) - UPDATERS_MAX
    if excess <= 0:
        return claims
    merged = updates[: excess + 1]
    newest = merged[-1]
    ancient = Claimant(manager=ANCIENT, api_version=newest.claimant.api_version)
    bucket = Claim(claimant=ancient, fields=all_fields(merged), time=newest.time)
    kept = tuple(claim for claim in claims if not any(claim is old for old in merged))
    return put(kept, bucket)


def _age(claim: Claim) -> tuple[str, str, str, str]:
    owner = claim.claimant
    return claim.time, owner.manager, owner.api_version, owner.subresource


def _order(claim: Claim) -> tuple[bool, tuple[str, str, str, str]]:
    return not claim.claimant.applied, _age(claim)


def _claim(entry: object) -> Claim | None:
    if not isinstance(entry, dict):
        return None
    operation, api_version = entry.get("operation"), entry.get("apiVersion")
    claimed = entry.get("fieldsV1", {})
    texts = [api_version, *(entry.get(key, "") for key in ("manager", "subresource", "time"))]
    if operation not in ("Apply", "Update") or entry.get("fieldsType") != "FieldsV1":
        return None
    if not isinstance(claimed, dict) or not all(isinstance(text, str) for text in texts):
        return None
    claimant = Claimant(
        manager=texts[1],
        api_version=texts[0],
        applied=operation == "Apply",
        subresource=texts[2],
    )
    return Claim(claimant=claimant, fields=claimed, time=texts[3])


def _entry(claim: Claim) -> dict[str, Any]:
    owner = claim.claimant
    entry: dict[str, Any] = {
        "manager": owner.manager or UNKNOWN_MANAGER,
        "operation": "Apply" if owner.applied else "Update",
        "apiVersion": owner.api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": claim.fields,
    }
    if claim.time:
        entry["time"] = claim.time
    if owner.subresource:
        entry["subresource"] = owner.subresource
    return entry
