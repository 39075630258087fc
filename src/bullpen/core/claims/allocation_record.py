"""What a claim's status records about the decision: classes with their configuration, and sources.

The configuration of a class is copied when the devices are decided. Later edits of the class
change what other claims get, and nothing for this one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace

from bullpen.api import codec
from bullpen.api.claim_allocation import AllocatedClass, AllocationSource, ClaimAllocation
from bullpen.api.kinds.deviceclaim import DeviceClaim
from bullpen.api.kinds.deviceclass import DeviceClass
from bullpen.api.kinds.devicepool import DevicePool
from bullpen.api.kinds.exporter import Exporter
from bullpen.core.claims.allocator import Allocator, Answer, Member
from bullpen.core.claims.pool_allocations import is_pool_device

CONFIG_BYTES_MAX = 256 * 1024
"""Configuration that is copied to one claim, as JSON. An object of a cluster has at most 1.5 MB."""


class AllocationRecords:
    """Makes the record of each decision of one pass."""

    def __init__(
        self,
        allocator: Allocator,
        classes: Iterable[DeviceClass],
        exporters: Iterable[Exporter],
        pools: Iterable[DevicePool],
    ) -> None:
        self._allocator = allocator
        self._classes = {found.metadata.name: found for found in classes}
        self._sources = {e.metadata.name: _source(e) for e in exporters}
        self._sizes: dict[tuple[str, int], int] = {}
        self._pools = {pool.metadata.name: _source(pool) for pool in pools}

    def of(self, claim: DeviceClaim, answer: Answer) -> ClaimAllocation:
        """The record of what the claim gets; of what it keeps if it only replaces lost members."""
        served: dict[str, list[str]] = {}
        for member in answer.members:
            for name in self._classes_of(claim, member):
                requests = served.setdefault(name, [])
                requests += [member.request] if member.request not in requests else []
        sources = {self._source_of(member.device) for member in answer.members} - {None}
        found = ClaimAllocation(
            classes=tuple(
                AllocatedClass(
                    name=name,
                    generation=self._classes[name].metadata.generation,
                    requests=tuple(requests),
                    config=self._classes[name].spec.config,
                )
                for name, requests in served.items()
            ),
            inventory=tuple(sorted((s for s in sources if s), key=lambda s: (s.kind, s.name))),
        )
        before = claim.status.allocation
        return found if before is None or not claim.status.members else _added(before, found)

    def problem(self, allocation: ClaimAllocation) -> str:
        """Why a record cannot be kept; empty if it can."""
        sizes = {(c.name, c.generation): self._size(c) for c in allocation.classes}
        whole = sum(sizes.values())
        if whole <= CONFIG_BYTES_MAX:
            return ""
        largest, _ = max(sizes, key=lambda key: sizes[key])
        return (
            f"the config of its classes has {whole} bytes and may have {CONFIG_BYTES_MAX};"
            f" the largest is that of DeviceClass {largest}"
        )

    def _size(self, found: AllocatedClass) -> int:
        key = (found.name, found.generation)
        if key not in self._sizes:
            self._sizes[key] = len(json.dumps(codec.encode(found)))
        return self._sizes[key]

    def _classes_of(self, claim: DeviceClaim, member: Member) -> Iterator[str]:
        """The class that was asked for; if it is a group, also its classes that have the device."""
        request = next(r for r in claim.spec.requests if r.name == member.request)
        form = request.exactly or request.first_available[member.alternative]
        asked = self._classes[form.device_class_name]
        yield asked.metadata.name
        if asked.spec.class_selector is None:
            return
        selector = asked.spec.class_selector.selector()
        bit = 1 << self._allocator.index.numbers[member.device]
        for name, leaf in sorted(self._classes.items()):
            if (
                leaf.spec.class_selector is None
                and selector.matches(leaf.metadata.labels)
                and self._allocator.criteria.of_class(name).devices & bit
            ):
                yield name

    def _source_of(self, device: str) -> AllocationSource | None:
        if is_pool_device(device):
            return self._pools.get(device.partition("/")[0])
        return self._sources.get(device)


def _source(found: Exporter | DevicePool) -> AllocationSource:
    meta = found.metadata
    return AllocationSource(kind=found.kind, name=meta.name, generation=meta.generation)


def _added(before: ClaimAllocation, found: ClaimAllocation) -> ClaimAllocation:
    """The record with what replaces lost members; a class that was edited since is there twice."""
    new = {(c.name, c.generation): c for c in found.classes}
    kept = []
    for old in before.classes:
        same = new.pop((old.name, old.generation), None)
        requests = dict.fromkeys((*old.requests, *(same.requests if same else ())))
        kept.append(replace(old, requests=tuple(requests)))
    names = {(source.kind, source.name) for source in found.inventory}
    others = [source for source in before.inventory if (source.kind, source.name) not in names]
    inventory = sorted((*others, *found.inventory), key=lambda s: (s.kind, s.name))
    return ClaimAllocation(classes=(*kept, *new.values()), inventory=tuple(inventory))
