"""What garbage is: given an object and how its owners stand, what must happen to it?

This module decides. It does not read the store and does not act: ``garbage``
gathers what is asked for here and carries out what comes back.
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
    """What of an object matters to its life."""

    uid: str
    owners: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    deleting: bool = False

    @property
    def standing(self) -> Standing:
        """How this object stands as an owner."""
        if self.deleting and ORPHAN in self.finalizers:
            return Standing.ORPHANING
        if self.deleting and FOREGROUND in self.finalizers:
            return Standing.WAITING
        return Standing.SOLID

    def blocks(self, uid: str) -> bool:
        """Whether a foreground deletion of that owner waits for this object."""
        return any(owner.uid == uid and owner.block_owner_deletion for owner in self.owners)


class Standing(Enum):
    """How an owner stands."""

    SOLID = auto()
    """There, and staying; or we cannot tell, which must count as the same."""

    WAITING = auto()
    """Waiting for its dependents to go first."""

    ORPHANING = auto()
    """Waiting to be forgotten by its dependents, which stay."""

    ABSENT = auto()


@dataclass(frozen=True, slots=True)
class Collect:
    """Delete the object. Without a propagation its own finalizers say how."""

    propagation: Propagation | None = None


@dataclass(frozen=True, slots=True)
class Disown:
    """Take these owners out of the object's references; others keep it."""

    uids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """What the finalizer promised is done."""

    finalizer: str


def node_of(value: bytes) -> Node:
    """The node in a stored object. Reads no more of it than that."""
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
    """What becomes of an object because of its owners, given how each stands.

    An owner that lets it go is forgotten. Otherwise one that stays keeps it. If
    none does it goes: in the foreground when an owner waits for it and it has
    dependents of its own, except where they wait in a circle, which nothing
    could then break.
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
    """Whether an object that is being deleted has done what it owed its dependents."""
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
