"""Takes devices of DevicePools for claims, and gives them up: writes the status of the pools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial

from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.devicepool import DevicePool
from bullpen.api.objects import Objects
from bullpen.controllers.object_edit import change_status
from bullpen.controllers.views import Views
from bullpen.core.claims import pool_allocations
from bullpen.core.claims.allocator import Answer
from bullpen.core.claims.pool_allocations import Held
from bullpen.errors import Conflict, NotFound
from bullpen.kit import times

TAKEN_PAUSE = timedelta(seconds=5)
"""How soon a claim takes again what it had taken and does not have any more.

While one controller takes over from another, one may give up at once what the other takes.
"""


class PoolHoldings:
    """What claims have of DevicePools, in the namespace of the pass."""

    def __init__(self, objects: Objects, views: Views) -> None:
        self._objects = objects
        self._pools = views[DevicePool]
        self._held: Mapping[str, Held] = {}
        self._taken: dict[str, datetime] = {}
        """By the uid of a claim, when it took devices a short time ago."""

    def look(self, namespace: str, now: datetime) -> None:
        """Begin a pass over one namespace."""
        self._taken = {uid: at for uid, at in self._taken.items() if now - TAKEN_PAUSE < at <= now}
        self._held = pool_allocations.held_by_claim(self._pools.all(namespace))

    def of(self, claim: DeviceClaim) -> Held:
        return self._held.get(claim.metadata.uid, ())

    def wakes(self) -> Iterator[datetime]:
        """When claims may take devices again."""
        return (times.shifted(at, TAKEN_PAUSE) for at in self._taken.values())

    async def take(self, claim: DeviceClaim, answer: Answer, now: datetime) -> bool:
        """Take what the answer says, and give up everything else. False if it is too soon.

        Pools are written in the order of their names. If one has changed, what was taken of the
        others is taken again or given up by the next pass: ``Conflict``.
        """
        wanted = pool_allocations.wanted(claim, answer)
        named = {device for device in answer.devices if pool_allocations.is_pool_device(device)}
        if named != {pool_allocations.full_name(*held) for held in self.of(claim)}:
            if named and claim.metadata.uid in self._taken:
                return False
            self._taken[claim.metadata.uid] = now
        before = {pool for pool, _ in self.of(claim)}
        for name in sorted(before - set(wanted)):
            await self._free(claim.metadata.namespace, name, claim.metadata.uid)
        for name, mine in sorted(wanted.items()):
            pool = self._pools.get(claim.metadata.namespace, name)
            if pool is None:
                raise Conflict(f"DevicePool {name} was deleted")
            await change_status(
                self._objects,
                self._pools,
                pool,
                partial(pool_allocations.taken, uid=claim.metadata.uid, mine=mine),
            )
        return True

    async def give_up(self, claim: DeviceClaim) -> None:
        """Give up everything that the claim has."""
        for name in sorted({pool for pool, _ in self.of(claim)}):
            await self._free(claim.metadata.namespace, name, claim.metadata.uid)

    async def _free(self, namespace: str, name: str, uid: str) -> None:
        pool = self._pools.get(namespace, name)
        if pool is not None:
            await change_status(
                self._objects,
                self._pools,
                pool,
                lambda found: pool_allocations.without(found, {uid}),
            )

    async def lost(self, claim: DeviceClaim) -> str:
        """A device that the claim should have and its pool does not know of; empty if none.

        The API itself is read: ending a claim cannot be undone.
        """
        for member in claim.status.members:
            if not pool_allocations.is_pool_device(member.device):
                continue
            name = member.device.partition("/")[0]
            try:
                pool = await self._objects.get(DevicePool, claim.metadata.namespace, name)
            except NotFound:
                return member.device
            held = pool_allocations.held_by_claim((pool,)).get(claim.metadata.uid, ())
            if member.device not in {pool_allocations.full_name(*found) for found in held}:
                return member.device
        return ""

    async def sweep(self, namespace: str, claims: Iterable[DeviceClaim]) -> None:
        """Free what claims have that have ended or were deleted.

        The view may not have a new claim yet, so the API itself is read.
        """
        known = {claim.metadata.uid for claim in claims}
        for uid, held in sorted(self._held.items()):
            if uid in known:
                continue
            try:
                found = await self._objects.get(DeviceClaim, namespace, held[0][1].claim)
            except NotFound:
                found = None
            if found is not None and found.metadata.uid == uid and not found.status.ended:
                continue
            for name in sorted({pool for pool, _ in held}):
                await self._free(namespace, name, uid)
