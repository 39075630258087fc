"""What waiting claims were given by earlier passes: what their leases ask for, and what they took.

A pass gives them the same again where it is as good as anything else. Otherwise their leases
would be withdrawn, and machines that pools start for them would not be needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.exporterset import SET_NAME
from bullpen.api.kinds.lease import Lease
from bullpen.core.claims import bitsets, pool_allocations
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.pool_allocations import Held
from bullpen.core.leases.lease_group import claim_uid, pinned


class KeptDevices:
    """By claim, the devices of one index."""

    def __init__(
        self, index: InventoryIndex, leases: Iterable[Lease], held: Mapping[str, Held]
    ) -> None:
        """``leases``: open leases. ``held``: by the uid of a claim, what it has of DevicePools."""
        self._index, self._held = index, held
        self._leases: dict[str, list[Lease]] = {}
        for lease in leases:
            if lease.status.exporter_ref is None and claim_uid(lease):
                self._leases.setdefault(claim_uid(lease), []).append(lease)
        self._pools: dict[str, int] = {}

    def of(self, claim: DeviceClaim) -> int:
        uid = claim.metadata.uid
        names = [pool_allocations.full_name(*each) for each in self._held.get(uid, ())]
        pools = []
        for lease in self._leases.get(uid, ()):
            names.append(pinned(lease))
            if not pinned(lease):
                pools.append(lease.spec.selector.match_labels.get(SET_NAME, ""))
        known = self._index.numbers
        kept = bitsets.of(known[name] for name in names if name in known) if names else 0
        return kept | bitsets.union(self._members(pool) for pool in pools if pool)

    def _members(self, pool: str) -> int:
        """The devices of an ExporterSet: a lease for one asks for any of them."""
        if pool not in self._pools:
            devices = enumerate(self._index.devices)
            self._pools[pool] = bitsets.of(n for n, found in devices if found.pool == pool)
        return self._pools[pool]
