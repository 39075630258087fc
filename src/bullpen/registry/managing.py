"""Field managers: the claims kept in ``metadata.managedFields``.

A claim belongs to a manager doing one operation on one subresource. An applier is one
claimant whatever version it uses; an updater is one claimant per version, as in Kubernetes.
Everything here is pure; ``apply`` builds on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from bullpen.registry import fields
from bullpen.registry.fields import EMPTY, FieldSet, from_paths
from bullpen.registry.walking import Comparison

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
