"""The simulated storage of lasting disks: it outlives the service, and is unreliable."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bullpen.core.targets.disks import Create, StoredDisk
from bullpen.errors import NoCapacity, StorageFailed, Unreachable
from bullpen.placements.base import Key
from bullpen.placements.memory_disks import MemoryDiskStorage

T = TypeVar("T")

PATIENCE = 20.0
"""How long a caller waits for a storage that hangs."""

DONE = 0.5
"""The share of failed calls that were carried out nevertheless."""


class LastingStorage:
    """A ``DiskStorage`` whose calls may fail, hang, or find no space."""

    def __init__(self, chance: random.Random) -> None:
        self.contents = MemoryDiskStorage()
        self.host = self.contents.host
        self.fails_until = 0.0
        self.hangs_until = 0.0
        self.full_until = 0.0
        self._chance = chance

    def heal(self) -> None:
        self.fails_until = self.hangs_until = self.full_until = 0.0

    async def look(self, key: Key, uid: str, *, attached_to: str = "") -> StoredDisk | None:
        return await self._asked(lambda: self.contents.look(key, uid, attached_to=attached_to))

    async def create(self, key: Key, uid: str, step: Create) -> StoredDisk:
        self._reserve()
        return await self._asked(lambda: self.contents.create(key, uid, step))

    async def grow(self, key: Key, uid: str, size_bytes: int) -> StoredDisk:
        self._reserve()
        return await self._asked(lambda: self.contents.grow(key, uid, size_bytes))

    async def delete(self, key: Key, uid: str) -> None:
        await self._asked(lambda: self.contents.delete(key, uid))

    def _reserve(self) -> None:
        if _now() < self.full_until:
            raise NoCapacity("the storage is full")

    async def _asked(self, work: Callable[[], Awaitable[T]]) -> T:
        """Carry out a call; one that fails may have been carried out before or after that."""
        hangs, fails = _now() < self.hangs_until, _now() < self.fails_until
        if hangs and self._chance.random() < DONE:
            await asyncio.sleep(self._chance.uniform(0.0, PATIENCE))
        if not (hangs or fails):
            return await work()
        if self._chance.random() < DONE:
            await work()
        if hangs:
            raise Unreachable("the storage took too long")
        raise StorageFailed("the storage failed")


def _now() -> float:
    return asyncio.get_running_loop().time()
