"""Indexes of a lab that last from one pass over its claims to the next."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.exporterset import SET_NAME
from bullpen.core.claims.allocator import Allocator
from bullpen.core.claims.claim_lab import ClaimLab
from bullpen.core.claims.criteria import ClassDefinition, CriteriaIndex
from bullpen.core.claims.inventory import Inventory, InventoryDevice
from bullpen.core.claims.inventory_index import InventoryIndex
from bullpen.core.claims.lab_inventory import allowed_devices
from bullpen.core.claims.startable_devices import startable_devices, with_all_slots
from bullpen.core.claims.work import SharedBudget, loop_budget
from bullpen.core.leases.access import Policies

_Described = tuple[
    tuple[InventoryDevice, ...], Mapping[str, int], frozenset[str], tuple[ClassDefinition, ...]
]

_Labels = Mapping[str, Mapping[str, str]]


class ClaimIndexes:
    """Indexes of earlier passes, taken over while what they were made from is the same.

    They change how much work a decision is, and never the decision.
    """

    def __init__(self, loops: SharedBudget | None = None) -> None:
        """``loops``: what expressions may take, also in passes over other namespaces."""
        self._loops = loops or loop_budget()
        self._made: dict[str, tuple[_Described, Allocator]] = {}
        self._approved: dict[tuple[InventoryIndex, str, timedelta], int] = {}
        self._basis: tuple[Policies, _Labels, _Labels] = (Policies(), {}, {})
        """Policies, and the labels of clients and of exporters."""

    def allocator(
        self, use: str, inventory: Inventory, classes: tuple[ClassDefinition, ...]
    ) -> Allocator:
        """An allocator for devices like these, whether they are in use or not."""
        described = (inventory.devices, inventory.counters, inventory.incomplete, classes)
        made = self._made.get(use)
        if made is not None and made[0] == described and made[1].reusable:
            return made[1]
        index = InventoryIndex(inventory)
        allocator = Allocator(index, CriteriaIndex(index, classes, self._loops))
        self._made[use] = (described, allocator)
        kept = {allocator.index for _, allocator in self._made.values()}
        self._approved = {key: bits for key, bits in self._approved.items() if key[0] in kept}
        return allocator

    def start(self, lab: ClaimLab, now: datetime) -> None:
        """Begin a pass: what other policies, clients or labels allowed is forgotten."""
        self._loops.begin(now)
        labels = {e.metadata.name: e.metadata.labels for e in lab.exporters}
        if lab.policies.enforced:
            pools = {supply.member.labels.get(SET_NAME): supply.member for supply in lab.supplies}
            startable = startable_devices(with_all_slots(lab.supplies), lab.offers)
            labels |= {device.name: pools[device.pool].labels for device in startable}
        basis = (lab.policies, lab.clients, labels)
        if basis != self._basis:
            self._approved, self._basis = {}, basis

    def allowed(self, claim: DeviceClaim, index: InventoryIndex) -> int:
        """The devices of the index that the policies give the claim's client for so long."""
        policies, clients, labels = self._basis
        client, duration = claim.spec.client_ref.name, claim.spec.duration
        key = (index, client, duration)
        if key not in self._approved:
            self._approved[key] = allowed_devices(
                index, policies, client=clients.get(client), labels=labels, duration=duration
            )
        return self._approved[key]
