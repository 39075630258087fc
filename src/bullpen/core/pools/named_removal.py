"""Removal of members by name: which of them leave, and the pool afterwards. Pure.

The removals and the lower count are one write of one object, so no reader sees one without
the other. A member is identified by its uid: asking twice changes nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.api.meta import ObjectMeta
from bullpen.api.scale_down import REMOVALS_MAX, Removal
from bullpen.core.pools import member_names
from bullpen.errors import BadRequest, Conflict

Pool = ExporterSet | VirtualTargetPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A member that is to leave, as the caller names it."""

    name: str
    uid: str = ""
    """The member that is meant, if names are used again; empty for whichever has the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    pool: Pool
    """The pool to write; the same as before if nothing changes."""

    leaving: tuple[str, ...]
    """Members that leave because of this request."""

    already: tuple[str, ...]
    """Members that are gone or on their way, so that nothing changes for them."""

    @property
    def count(self) -> int:
        """The count of the pool afterwards: what its scale subresource shows."""
        return _count(self.pool)


def removed(
    pool: Pool,
    named: Sequence[Named],
    found: Mapping[str, ObjectMeta],
    *,
    leases: Mapping[str, str],
    when_idle: bool,
) -> Removed:
    """``pool`` without the members ``named``; ``found`` are the objects of these names.

    All of them are checked before anything changes. Raises ``BadRequest`` for an object that is
    no member, and ``Conflict`` for a leased one unless ``when_idle``, or if the count cannot
    fall that far.
    """
    if not named:
        raise BadRequest("targets: name at least one member of the pool")
    known = {removal.uid for removal in pool.spec.removals}
    leaving: list[Removal] = []
    already: list[str] = []
    for each in dict.fromkeys(named):
        meta, name = found.get(each.name), each.name
        if _has_left(pool, each, meta):
            already.append(name)
            continue
        if meta is None or not _is_member(pool, meta):
            raise BadRequest(f"targets: {name} is not a member of {pool.metadata.name}")
        if meta.uid in known or meta.deletion_timestamp is not None:
            already.append(name)
            continue
        if leases.get(name) and not when_idle:
            raise Conflict(
                f"lease {leases[name]} holds {name}; with whenIdle it leaves when the lease ends"
            )
        known.add(meta.uid)
        leaving.append(Removal(name=name, uid=meta.uid, when_idle=when_idle))
    if len(leaving) + len(pool.spec.removals) > REMOVALS_MAX:
        raise Conflict(
            f"{len(pool.spec.removals)} members are leaving; try again when they are gone"
        )
    return Removed(
        pool=_without(pool, leaving) if leaving else pool,
        leaving=tuple(each.name for each in leaving),
        already=tuple(dict.fromkeys(already)),
    )


def _without(pool: Pool, leaving: Sequence[Removal]) -> Pool:
    """The pool with these removals, and its count lower by as many."""
    removals, fallen = (*pool.spec.removals, *leaving), _count(pool) - len(leaving)
    if isinstance(pool, VirtualTargetPool):
        return replace(pool, spec=replace(pool.spec, replicas=max(0, fallen), removals=removals))
    if not pool.spec.max_replicas:
        return replace(pool, spec=replace(pool.spec, removals=removals))
    floor = max(1, pool.spec.min_replicas, pool.spec.min_available_replicas)
    if fallen < floor:
        raise Conflict(
            f"maxReplicas would fall from {pool.spec.max_replicas} to {fallen}, and cannot fall"
            f" below {floor}: lower minReplicas and minAvailableReplicas first, or set paused to"
            " stop the pool"
        )
    return replace(pool, spec=replace(pool.spec, max_replicas=fallen, removals=removals))


def _count(pool: Pool) -> int:
    if isinstance(pool, VirtualTargetPool):
        return pool.spec.replicas
    return pool.spec.max_replicas


def _is_member(pool: Pool, meta: ObjectMeta) -> bool:
    return any(
        reference.controller and reference.uid == pool.metadata.uid
        for reference in meta.owner_references
    )


def _has_left(pool: Pool, named: Named, meta: ObjectMeta | None) -> bool:
    """Whether the member that is meant existed and is gone, so that its name is free or reused."""
    if meta is not None:
        return bool(named.uid) and named.uid != meta.uid and _is_member(pool, meta)
    number = member_names.number(pool.metadata.name, named.name)
    # A set uses its names again, in any order below its ceiling; a pool counts on.
    ever = pool.status.created
    if isinstance(pool, ExporterSet):
        ever = max(ever, pool.spec.max_replicas)
    return 0 <= number < ever
