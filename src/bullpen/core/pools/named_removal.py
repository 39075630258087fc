"""Removal of members by name: which of them leave, and the pool afterwards. Pure.

The removals and the lower count are one write of one object, so nobody ever sees one without
the other. A member is identified by its uid: asking twice changes nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bullpen.api.virtualtarget import VirtualTarget
from bullpen.api.virtualtargetpool import REMOVALS_MAX, Removal, VirtualTargetPool
from bullpen.errors import BadRequest, Conflict


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    pool: VirtualTargetPool
    """The pool to write; the same as before if nothing changes."""

    leaving: tuple[str, ...]
    """Members that leave because of this request."""

    already: tuple[str, ...]
    """Members that are gone or on their way, so that nothing changes for them."""


def removed(
    pool: VirtualTargetPool,
    names: Sequence[str],
    found: Mapping[str, VirtualTarget],
    *,
    leases: Mapping[str, str],
    when_idle: bool,
) -> Removed:
    """``pool`` without the members ``names``; ``found`` are the targets of these names.

    All of them are checked before anything changes. Raises ``BadRequest`` for a target that is
    no member, and ``Conflict`` for a leased one unless ``when_idle``.
    """
    if not names:
        raise BadRequest("targets: name at least one member of the pool")
    known = {removal.uid for removal in pool.spec.removals}
    leaving: list[Removal] = []
    already: list[str] = []
    for name in dict.fromkeys(names):
        target = found.get(name)
        if target is None and _was_member(pool, name):
            already.append(name)
            continue
        if target is None or not _is_member(pool, target):
            raise BadRequest(f"targets: {name} is not a member of {pool.metadata.name}")
        uid = target.metadata.uid
        if uid in known or target.metadata.deletion_timestamp is not None:
            already.append(name)
            continue
        if leases.get(name) and not when_idle:
            raise Conflict(
                f"lease {leases[name]} holds {name}; with whenIdle it leaves when the lease ends"
            )
        leaving.append(Removal(name=name, uid=uid, when_idle=when_idle))
    if len(leaving) + len(pool.spec.removals) > REMOVALS_MAX:
        raise Conflict(
            f"{len(pool.spec.removals)} members are leaving; try again when they are gone"
        )
    spec = replace(
        pool.spec,
        replicas=max(0, pool.spec.replicas - len(leaving)),
        removals=(*pool.spec.removals, *leaving),
    )
    return Removed(
        pool=replace(pool, spec=spec) if leaving else pool,
        leaving=tuple(each.name for each in leaving),
        already=tuple(already),
    )


def _is_member(pool: VirtualTargetPool, target: VirtualTarget) -> bool:
    return any(
        reference.controller and reference.uid == pool.metadata.uid
        for reference in target.metadata.owner_references
    )


def _was_member(pool: VirtualTargetPool, name: str) -> bool:
    """Whether a target that does not exist was a member: no name is used twice."""
    tail = name.removeprefix(f"{pool.metadata.name}-")
    return tail != name and tail.isascii() and tail.isdigit() and int(tail) < pool.status.created
