"""What is booked: the leases of claims with a begin time, and what bookings keep from claims.

A claim with a begin time gets its leases when it is booked, with that begin time. So the fence
of booked leases (``core.leases.bookings``) keeps their exporters, also after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property

from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.lease import Lease
from bullpen.core.claims import claim_lifecycle
from bullpen.core.claims.claim_queue import Reservation
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.leases.bookings import Placement, placements
from bullpen.core.leases.lease_group import claim_uid, group_size, pinned
from bullpen.core.leases.requests import Lab


class ClaimBookings:
    """The bookings of a namespace, as a pass over its claims sees them."""

    def __init__(self, lab: Lab, leases: Sequence[Lease]) -> None:
        """``leases``: open leases."""
        self._lab, self._leases = lab, leases

    def leases(self, claim: DeviceClaim) -> tuple[Lease, ...]:
        """The leases that are booked for the claim as it is now; none if they are not complete."""
        found = self._by_claim.get(claim.metadata.uid, ())
        complete = bool(found) and len(found) == group_size(found[0])
        return found if complete and all(claim_lifecycle.books(x, claim) for x in found) else ()

    def suffices(self, claim: DeviceClaim, index: InventoryIndex, *, allowed: int) -> bool:
        """Whether what the claim has booked will do, so that nothing else is looked for.

        When its begin time has come and its leases were told to wait, other exporters may do.
        """
        leases = self.leases(claim)
        if not leases or claim_lifecycle.wait_of(leases) is not None:
            return False
        # A lease for any member of a pool is the pool's business.
        found = (index.numbers.get(pinned(lease)) for lease in leases if pinned(lease))
        usable = allowed & index.unblocked
        return all(number is not None and usable >> number & 1 for number in found)

    def reservations(self, index: InventoryIndex, *, besides: Set[str]) -> Iterator[Reservation]:
        """What is booked by leases, and by claims other than those with the uids ``besides``."""
        for placed in self._placements:
            number = index.numbers.get(placed.exporter)
            if number is not None and placed.request.claim not in besides:
                yield Reservation(
                    claim=f"lease {placed.request.name}",
                    devices=1 << number,
                    begin=placed.fence.begin,
                    end=placed.fence.end,
                )

    @cached_property
    def _placements(self) -> tuple[Placement, ...]:
        return placements(self._lab)

    @cached_property
    def _by_claim(self) -> Mapping[str, tuple[Lease, ...]]:
        found: dict[str, tuple[Lease, ...]] = {}
        for lease in self._leases:
            claim = claim_uid(lease) if lease.spec.begin_time is not None else ""
            if claim and lease.status.exporter_ref is None:
                found[claim] = (*found.get(claim, ()), lease)
        return found
