"""Lasting disks without content, for the simulator and for tests under virtual time."""

from __future__ import annotations

import asyncio

from bullpen.core.targets.disks import Create, StoredDisk, bytes_of
from bullpen.errors import LabError
from bullpen.placements.base import Key

ALLOCATED_BYTES = 196_608
"""Space of an empty disk, as with qcow2."""

IMAGE_BYTES = 1 << 30
"""Size of every image."""


class MemoryDiskStorage:
    """Keeps the sizes of disks in a dict; ``fault`` and ``grow_fault``, if set, are raised."""

    host = "memory"

    def __init__(self) -> None:
        self.stored: dict[tuple[Key, str], StoredDisk] = {}
        self.fault: LabError | None = None
        self.grow_fault: LabError | None = None
        self.copied: asyncio.Event | None = None
        """If set, disks that are copied are not complete before this event."""

    async def look(self, key: Key, uid: str, *, attached_to: str = "") -> StoredDisk | None:
        return self.stored.get((key, uid))

    async def create(self, key: Key, uid: str, step: Create) -> StoredDisk:
        if self.fault is not None:
            raise self.fault
        if step.copy_of is not None and self.copied is not None:
            await self.copied.wait()
        source = bytes_of(step.copy_of.status.capacity) if step.copy_of else IMAGE_BYTES
        size = step.size_bytes if step.size_bytes is not None else source
        assert size is not None, "a disk that is copied has a capacity"
        made = StoredDisk(virtual_bytes=size, allocated_bytes=ALLOCATED_BYTES)
        return self.stored.setdefault((key, uid), made)

    async def grow(self, key: Key, uid: str, size_bytes: int) -> StoredDisk:
        if self.grow_fault is not None:
            raise self.grow_fault
        found = self.stored[key, uid]
        grown = max(found.virtual_bytes, size_bytes)
        made = StoredDisk(virtual_bytes=grown, allocated_bytes=found.allocated_bytes)
        self.stored[key, uid] = made
        return made

    async def delete(self, key: Key, uid: str) -> None:
        self.stored.pop((key, uid), None)
