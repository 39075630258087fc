"""What claims have of DevicePools: licences, slots, partitions, and shares of devices.

No exporter stands for these devices, so no lease does either. The status of the pool records who
has them, and is written under its version. So no device is used twice and no counter overdrawn,
whoever writes. A claim takes them before its leases are created, and gives them up after these
are withdrawn or released.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.devicepool import DevicePool, DevicePoolStatus, PoolAllocation
from bullpen.core.claims.allocator import Answer, Member
from bullpen.core.claims.inventory import Amounts, Use, amount, amounts
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.lab_inventory import inventory_of
from bullpen.core.claims.ledger import Ledger
from bullpen.core.claims.startable_devices import pool_of
from bullpen.errors import Conflict
from bullpen.kit import quantities

Held = tuple[tuple[str, PoolAllocation], ...]
"""What one claim has: names of pools, and what it has of them."""


def is_pool_device(device: str) -> bool:
    """Whether the device is one of a DevicePool, and no exporter."""
    return "/" in device and not pool_of(device)


def full_name(pool: str, allocation: PoolAllocation) -> str:
    """The device as members of claims name it."""
    return f"{pool}/{allocation.device}"


def held_by_claim(pools: Iterable[DevicePool]) -> Mapping[str, Held]:
    """By the uid of a claim, what it has."""
    found: dict[str, Held] = {}
    for pool in sorted(pools, key=lambda pool: pool.metadata.name):
        for allocation in pool.status.allocations:
            before = found.get(allocation.claim_uid, ())
            found[allocation.claim_uid] = (*before, (pool.metadata.name, allocation))
    return found


def wanted(claim: DeviceClaim, answer: Answer) -> Mapping[str, tuple[PoolAllocation, ...]]:
    """By pool, what the claim takes if it gets this answer."""
    found: dict[str, tuple[PoolAllocation, ...]] = {}
    for member in answer.members:
        if is_pool_device(member.device):
            pool, _, device = member.device.partition("/")
            share = {name: _written(asked) for name, asked in member.share or ()}
            taken = PoolAllocation(
                device=device,
                claim=claim.metadata.name,
                claim_uid=claim.metadata.uid,
                request=member.request,
                alternative=alternative_name(claim, member),
                share=share,
                members=len(answer.members),
            )
            found[pool] = (*found.get(pool, ()), taken)
    return found


def alternative_name(claim: DeviceClaim, member: Member) -> str:
    """The name of the chosen alternative; empty if the request has none to choose from."""
    request = next(r for r in claim.spec.requests if r.name == member.request)
    return request.first_available[member.alternative].name if request.first_available else ""


def taken(pool: DevicePool, uid: str, mine: Sequence[PoolAllocation]) -> DevicePoolStatus:
    """The status in which the claim has ``mine`` of the pool, and nothing else of it.

    Raises ``Conflict`` if others have what it takes.
    """
    status = without(pool, {uid})
    index = InventoryIndex(inventory_of((), (), (pool,)))
    name = pool.metadata.name
    ledger = Ledger(index, (_use(name, allocation) for allocation in status.allocations))
    for allocation in mine:
        number = index.numbers.get(full_name(name, allocation))
        share = _share(allocation)
        if number is None or not _has_room(index, ledger, number, share):
            raise Conflict(f"device {full_name(name, allocation)} is not free any more")
        ledger.take(number, share)
    if any(left < 0 for left in ledger.counters.values()):
        raise Conflict(f"the counters of DevicePool {name} do not suffice any more")
    return replace(status, allocations=(*status.allocations, *mine))


def _has_room(index: InventoryIndex, ledger: Ledger, number: int, share: Amounts | None) -> bool:
    if ledger.unused >> number & 1:
        return True
    shared = ledger.shared >> number & 1
    return bool(shared) and share is not None and ledger.has_room(number, share)


def without(pool: DevicePool, uids: Set[str]) -> DevicePoolStatus:
    """The status in which these claims have nothing of the pool."""
    left = tuple(a for a in pool.status.allocations if a.claim_uid not in uids)
    return replace(pool.status, allocations=left)


def uses(
    pools: Iterable[DevicePool], *, besides: Set[str], until: Mapping[str, datetime | None]
) -> Iterator[Use]:
    """Who has devices of pools, without the claims ``besides``; ``until``: by uid of the claim."""
    for pool in pools:
        for allocation in pool.status.allocations:
            if allocation.claim_uid not in besides:
                use = _use(pool.metadata.name, allocation)
                yield replace(use, until=until.get(allocation.claim_uid))


def _use(pool: str, allocation: PoolAllocation) -> Use:
    return Use(
        device=full_name(pool, allocation),
        holder=f"claim {allocation.claim}",
        share=_share(allocation),
    )


def _share(allocation: PoolAllocation) -> Amounts | None:
    if not allocation.share:
        return None
    written = allocation.share.items()
    return amounts({name: amount(quantities.parse(asked)) for name, asked in written})


def _written(billionths: int) -> str:
    return str(quantities.Quantity(Decimal(billionths).scaleb(-9)))
