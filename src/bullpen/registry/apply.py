"""Server-side apply: merge a configuration into an object by field ownership.

Pure. The rules are those of Kubernetes' structured merge. The fields in the configuration
are set and become owned by the applier. A value that another manager owns is a conflict
unless forced. A field that the applier set last time, no longer sets, and no other manager
owns is removed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from bullpen.api.paths import Document, decode, encode
from bullpen.errors import BadRequest, Cause, Conflict
from bullpen.registry import fields
from bullpen.registry.fields import (
    EMPTY,
    FieldSet,
    Path,
    Schema,
    children,
    element_schema,
    elements,
    item_schema,
)
from bullpen.registry.managed_fields import (
    UNMANAGED,
    Claim,
    Claimant,
    Claims,
    Comparison,
    all_fields,
    compare,
    field_set,
    find,
    merge,
    put,
    remove,
    same,
    updated,
    with_structs,
)

BEFORE_FIRST_APPLY = "before-first-apply"
KUBECTL = "kubectl"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    document: Document
    claims: Claims


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """A field the applier wants to change and another manager owns."""

    claimant: Claimant
    path: Path


def apply(
    schema: Schema,
    live: Document,
    config: Document,
    claims: Claims,
    claimant: Claimant,
    *,
    force: bool,
    time: str,
) -> Applied:
    """Merge ``config`` into ``live`` for ``claimant``; raises ``Conflict``, ``BadRequest``.

    ``live`` is empty for an object that does not exist yet, and has no ``managedFields``:
    ``claims`` are their content.
    """
    _check_lists(schema, (), config)
    if live and not claims:
        claims = _everything(schema, live, claimant, time=time)
    claimed = fields.difference(field_set(schema, config), UNMANAGED)
    mine = Claim(claimant=claimant, fields=claimed, time=time)
    last = find(claims, claimant)
    claims = put(claims, mine)
    merged = merge(schema, live, config)
    # Fields that cannot be owned cannot be given up either: an object keeps its name.
    owned = fields.union(all_fields(claims), UNMANAGED)
    if last and fields.difference(last.fields, owned):
        merged = _pruned(schema, merged, owned, last.fields)
    change = compare(schema, live, merged)
    if not force:
        _refuse(_not_excused(schema, live, _clashes(change, claims, claimant), claimant))
    if last and last.fields == claimed and same(live, merged):
        claims = put(claims, replace(mine, time=last.time))
    if claimant.manager == KUBECTL:
        merged = _with_last_applied(live, merged, config)
    return Applied(document=merged, claims=_settled(change, claims, claimant))


def _pruned(schema: Schema, merged: Document, owned: FieldSet, last: FieldSet) -> Document:
    """``merged`` without the fields that the applier gave up and no manager owns.

    Removing all its former fields removes too much: owned fields are restored first, then
    fields that were removed only because they were inside a removed one.
    """
    given_up = with_structs(schema, last)
    everything = with_structs(schema, field_set(schema, merged))
    bare = remove(schema, merged, given_up)
    spared = fields.union(
        with_structs(schema, field_set(schema, bare)), with_structs(schema, owned)
    )
    pruned = remove(schema, merged, fields.difference(everything, spared))
    gone = fields.difference(everything, with_structs(schema, field_set(schema, pruned)))
    result: Document = remove(schema, merged, fields.intersection(gone, given_up))
    return result


def _clashes(change: Comparison, claims: Claims, claimant: Claimant) -> list[Clash]:
    changed = change.changed
    return [
        Clash(claimant=claim.claimant, path=path)
        for claim in sorted(claims, key=lambda claim: str(claim.claimant))
        if not claim.claimant.is_same(claimant)
        for path in fields.members(fields.intersection(claim.fields, changed))
    ]


def _settled(change: Comparison, claims: Claims, claimant: Claimant) -> Claims:
    """The claims after the change: other managers lose what was taken or removed.

    A manager that owns nothing is dropped, unless none would be left: an object without claims
    would look as if it had never been applied.
    """
    lost = fields.union(change.changed, change.removed)
    settled = [
        claim
        if claim.claimant.is_same(claimant)
        else replace(claim, fields=fields.difference(claim.fields, lost))
        for claim in claims
    ]
    mine = find(claims, claimant)
    assert mine is not None, "who applies has a claim, if an empty one"
    return tuple(claim for claim in settled if claim.fields) or (mine,)


def _everything(schema: Schema, live: Document, claimant: Claimant, *, time: str) -> Claims:
    """Fields that existed before the first claim need an owner."""
    before = Claimant(manager=BEFORE_FIRST_APPLY, api_version=claimant.api_version)
    return updated((), compare(schema, {}, live), before, time=time)


def _not_excused(
    schema: Schema, live: Document, clashes: list[Clash], claimant: Claimant
) -> list[Clash]:
    """The conflicts left when kubectl moves an object from client- to server-side apply.

    Fields listed in its annotation and unchanged since were always kubectl's, whatever manager
    name it used.
    """
    if not clashes or claimant.manager != KUBECTL:
        return clashes
    own = _last_applied_fields(schema, live)
    return [clash for clash in clashes if not fields.has(own, clash.path)]


def _last_applied_fields(schema: Schema, live: Document) -> FieldSet:
    annotations = live.get("metadata", {}).get("annotations") or {}
    text = annotations.get(LAST_APPLIED)
    if not text:
        return EMPTY
    try:
        applied = decode(text.encode())
    except BadRequest:
        # Any client can write the annotation; one that is not JSON resolves no conflict.
        return EMPTY
    change = compare(schema, applied, live)
    stale = fields.union(change.changed, change.removed)
    return fields.difference(field_set(schema, applied), stale)


def _with_last_applied(live: Document, merged: Document, config: Document) -> Document:
    """Keep kubectl's annotation correct, so that a client-side apply can follow."""
    if not (live.get("metadata", {}).get("annotations") or {}).get(LAST_APPLIED):
        return merged
    metadata = config.get("metadata", {})
    stated = {k: v for k, v in metadata.get("annotations", {}).items() if k != LAST_APPLIED}
    bare = {**config, "metadata": {**metadata, "annotations": stated}}
    annotations = {
        **(merged["metadata"].get("annotations") or {}),
        LAST_APPLIED: encode(bare).decode() + "\n",
    }
    return {**merged, "metadata": {**merged["metadata"], "annotations": annotations}}


def _check_lists(schema: Schema, path: Path, value: Any) -> None:
    """Reject lists that cannot be merged: a repeated item, or an item without its keys."""
    if isinstance(value, dict):
        for element, item in children(schema, value).items():
            _check_lists(element_schema(schema, element), (*path, element), item)
    elif isinstance(value, list) and schema.get("x-kubernetes-list-type") in ("map", "set"):
        found = elements(schema, value)
        if found is None:
            keys = schema.get("x-kubernetes-list-map-keys", ["value"])
            raise BadRequest(
                f"{fields.display(path)}: an item is repeated or lacks its key"
                f" ({', '.join(keys)}), so this list cannot be merged"
            )
        for element, item in zip(found, value, strict=True):
            _check_lists(item_schema(schema), (*path, element), item)


def _refuse(clashes: list[Clash]) -> None:
    if not clashes:
        return
    causes = tuple(
        Cause(
            field=fields.display(clash.path),
            message=f"conflict with {clash.claimant}",
            reason="FieldManagerConflict",
        )
        for clash in clashes
    )
    if len(causes) == 1:
        message = f"Apply failed with 1 conflict: {causes[0].message}: {causes[0].field}"
        raise Conflict(message, causes=causes)
    lines: list[str] = []
    for claimant in dict.fromkeys(str(clash.claimant) for clash in clashes):
        lines.append(f"conflicts with {claimant}:")
        lines += [f"- {fields.display(c.path)}" for c in clashes if str(c.claimant) == claimant]
    raise Conflict(f"Apply failed with {len(causes)} conflicts: " + "\n".join(lines), causes=causes)
