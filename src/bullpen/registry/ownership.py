"""What is garbage: given an object and the state of its owners, what must happen to it?

This module decides. It does not read the store and does not act: ``garbage`` gathers the
inputs and carries out the results.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import msgspec

from bullpen.api.document import Document
from bullpen.registry.metadata import FOREGROUND, ORPHAN
from bullpen.registry.options import Propagation


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
