"""Lasting disks in a cluster: each is a PersistentVolumeClaim of the same name.

A claim exists as long as its VirtualDisk, whatever becomes of the Pods that mount it. Its
volume contains one file, which the Pod of the target makes and grows when it starts
(``disk_content``): a volume can often be made only where its first Pod runs, so a claim that
waits for one is as good as a bound one. A copy is made by the storage of the cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

from bullpen.api.claim import PersistentVolumeClaim
from bullpen.api.kinds.virtualdisk import VirtualDisk
from bullpen.api.meta import ObjectMeta, OwnerReference
from bullpen.api.objects import Objects
from bullpen.api.paths import Document
from bullpen.api.pod import MANAGED_BY, MANAGER
from bullpen.core.targets.disks import Create, StoredDisk, bytes_of
from bullpen.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    NoCapacity,
    NotFound,
    Refused,
    Rejected,
    Unreachable,
)
from bullpen.placements.base import Key

SIZE = "virtualtarget.jumpstarter.dev/disk-bytes"
"""Annotation of a claim: the size of the disk, which is less than that of its volume."""

OVERHEAD_BYTES = 64 << 20
"""Room for the file system of a volume and the tables of the file, besides an eighth."""


class ClaimStorage:
    """A ``DiskStorage``."""

    host = ""
    """A volume is where the cluster puts it."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def look(self, key: Key, uid: str, *, attached_to: str = "") -> StoredDisk | None:
        found = await self._read(key)
        return _stored(found) if found is not None and _is_of(found, uid) else None

    async def create(self, key: Key, uid: str, step: Create) -> StoredDisk:
        disk = await self._objects.get(VirtualDisk, *key)
        made = _claim(disk, uid, step)
        try:
            return _stored(await self._written(self._objects.create(made)))
        except AlreadyExists:
            found = await self._read(key)
        if found is None or found.metadata.deletion_timestamp is not None:
            raise Unreachable(f"an earlier PersistentVolumeClaim {key[1]} is being deleted")
        if not _is_of(found, uid):
            raise Refused(
                f"a PersistentVolumeClaim {key[1]} exists and does not belong to this disk;"
                " delete it or choose another name"
            )
        return _stored(found)

    async def grow(self, key: Key, uid: str, size_bytes: int) -> StoredDisk:
        found = await self._read(key)
        if found is None or not _is_of(found, uid):
            raise Refused(f"the PersistentVolumeClaim {key[1]} of this disk is gone")
        if _size(found) >= size_bytes:
            return _stored(found)
        annotations = {**found.metadata.annotations, SIZE: str(size_bytes)}
        grown = replace(
            found,
            metadata=replace(found.metadata, annotations=annotations),
            spec={**found.spec, "resources": _request(size_bytes)},
        )
        try:
            return _stored(await self._written(self._objects.update(grown)))
        except (Conflict, NotFound) as error:
            raise Unreachable(f"its PersistentVolumeClaim changed meanwhile: {error}") from None

    async def delete(self, key: Key, uid: str) -> None:
        found = await self._read(key)
        if found is None or not _is_of(found, uid) or found.metadata.deletion_timestamp is not None:
            return
        try:
            await self._objects.delete(found)
        except Conflict:
            raise Unreachable("its PersistentVolumeClaim changed meanwhile") from None

    async def _read(self, key: Key) -> PersistentVolumeClaim | None:
        try:
            return await self._objects.get(PersistentVolumeClaim, *key)
        except NotFound:
            return None

    async def _written(self, write: Awaitable[PersistentVolumeClaim]) -> PersistentVolumeClaim:
        """Await a write; raises what the contract of storages says about refusals."""
        try:
            return await write
        except (AlreadyExists, Conflict, NotFound):
            raise
        except Forbidden as error:
            # The API server identifies an exceeded quota only by this text.
            if "exceeded quota" in error.message:
                raise NoCapacity(error.message) from None
            raise Refused(f"the cluster refuses the volume: {error.message}") from None
        except Rejected as error:
            raise Refused(f"the cluster refuses the volume: {error.message}") from None


def _claim(disk: VirtualDisk, uid: str, step: Create) -> PersistentVolumeClaim:
    """The claim of a disk. Raises ``Refused`` if its size is not known."""
    copied = bytes_of(step.copy_of.status.capacity) if step.copy_of is not None else None
    size = step.size_bytes if step.size_bytes is not None else copied
    if size is None:
        raise Refused("spec.size: in a cluster, a disk from an image needs a size")
    spec: Document = {"accessModes": ["ReadWriteOnce"], "resources": _request(size)}
    if disk.spec.storage_class_name:
        spec["storageClassName"] = disk.spec.storage_class_name
    if step.copy_of is not None:
        name = step.copy_of.metadata.name
        spec["dataSource"] = {"kind": PersistentVolumeClaim.kind, "name": name}
    owner = OwnerReference(
        api_version=disk.api_version,
        kind=disk.kind,
        name=disk.metadata.name,
        uid=uid,
        controller=True,
        block_owner_deletion=True,
    )
    meta = ObjectMeta(
        name=disk.metadata.name,
        namespace=disk.metadata.namespace,
        labels={MANAGED_BY: MANAGER},
        annotations={SIZE: str(size)},
        owner_references=(owner,),
    )
    return PersistentVolumeClaim(metadata=meta, spec=spec)


def _request(size_bytes: int) -> Document:
    mebibytes = -(-(size_bytes + size_bytes // 8 + OVERHEAD_BYTES) // (1 << 20))
    return {"requests": {"storage": f"{mebibytes}Mi"}}


def _is_of(claim: PersistentVolumeClaim, uid: str) -> bool:
    return any(owner.uid == uid for owner in claim.metadata.owner_references)


def _size(claim: PersistentVolumeClaim) -> int:
    given = claim.metadata.annotations.get(SIZE, "")
    return int(given) if given.isascii() and given.isdigit() else 0


def _stored(claim: PersistentVolumeClaim) -> StoredDisk:
    problem = ""
    if claim.metadata.deletion_timestamp is not None:
        problem = "its PersistentVolumeClaim is being deleted"
    elif claim.status.phase == "Lost":
        problem = "its PersistentVolumeClaim has lost its volume"
    elif not _size(claim):
        problem = f"its PersistentVolumeClaim has no annotation {SIZE}"
    allocated = bytes_of(claim.status.capacity.get("storage", "")) or 0
    return StoredDisk(virtual_bytes=_size(claim), allocated_bytes=allocated, problem=problem)
