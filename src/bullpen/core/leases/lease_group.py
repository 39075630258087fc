"""Leases that are assigned together or not at all: the members of one DeviceClaim.

Each of them names its exporter, is controlled by the claim, and says how many they are. A lease
without a claim is a group of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bullpen.api.kinds.deviceclaim import MEMBERS_MAX, DeviceClaim
from bullpen.api.kinds.lease import Lease

GROUP_SIZE = "device.jumpstarter.dev/leases"
"""Annotation of a claim's lease: how many leases are assigned together with it, itself included."""

CALLED_OFF = "device.jumpstarter.dev/called-off"
"""Annotation of the first lease of a group: how often its assignment was undone."""

DIGITS_MAX = len(str(MEMBERS_MAX))


def claim_uid(lease: Lease | None) -> str:
    """The uid of the claim that controls the lease; empty if none does."""
    references = lease.metadata.owner_references if lease is not None else ()
    return next((r.uid for r in references if r.controller and r.kind == DeviceClaim.kind), "")


def group_size(lease: Lease) -> int:
    """How many leases belong to the lease's group; zero if that cannot be.

    Every user who may write leases may write the annotation, so its value is limited.
    """
    written = lease.metadata.annotations.get(GROUP_SIZE, "")
    plain = written.isascii() and written.isdecimal() and len(written) <= DIGITS_MAX
    size = int(written) if plain else 0
    return size if size <= MEMBERS_MAX else 0


def first_to_write(group: Sequence[Lease]) -> Lease | None:
    """The lease whose write makes the assignment of a group count; None if one is written."""
    if any(lease.status.exporter_ref is not None for lease in group):
        return None
    return group[0] if group else None


def called_off(lease: Lease) -> Lease:
    """The first lease of a group whose assignment was undone once more: any change will do."""
    written = lease.metadata.annotations.get(CALLED_OFF, "")
    count = int(written) if written.isascii() and written.isdecimal() else 0
    annotations = {**lease.metadata.annotations, CALLED_OFF: str(count + 1)}
    return replace(lease, metadata=replace(lease.metadata, annotations=annotations))


class LeaseGroups:
    """The open leases of each claim in a namespace."""

    def __init__(self) -> None:
        self._by_claim: dict[str, dict[str, Lease]] = {}

    def put(self, name: str, old: Lease | None, new: Lease | None) -> tuple[str, ...]:
        """A lease has changed; None if it is not open. Returns the others that this affects."""
        before, after = claim_uid(old), claim_uid(new)
        if before:
            group = self._by_claim[before]
            del group[name]
            if not group:
                del self._by_claim[before]
        if new is not None and after:
            self._by_claim.setdefault(after, {})[name] = new
        affected = {n for uid in (before, after) for n in self._by_claim.get(uid, ())}
        return tuple(sorted(affected - {name}))

    def of(self, claim: str) -> tuple[Lease, ...]:
        """The open leases of a claim, in the order in which their exporters are taken.

        The order is the same for all claims, so that two that compete for the same exporters
        conflict at the first one.
        """
        return tuple(sorted(self._by_claim.get(claim, {}).values(), key=_turn))

    def partners(self, lease: Lease) -> tuple[Lease | None, ...]:
        """The other leases of its group; None for each that is not open."""
        claim = claim_uid(lease)
        if not claim:
            return ()
        found = [x for x in self.of(claim) if x.metadata.name != lease.metadata.name]
        missing = group_size(lease) - 1 - len(found)
        return (*found, *(None for _ in range(missing)))

    def assignable(self, lease: Lease) -> tuple[Lease, ...]:
        """The waiting leases that get their exporters together with this one, it included.

        Empty as long as the group is incomplete, or has more leases than it should. When the
        others have theirs, a lease that lost its exporter gets it back alone.
        """
        claim = claim_uid(lease)
        if not claim:
            return (lease,)
        group = self.of(claim)
        if len(group) != group_size(lease):
            return ()
        if any(member.status.exporter_ref is not None for member in group):
            return (lease,)
        return group


def pinned(lease: Lease) -> str:
    """The exporter that the lease asks for by name; empty if it names none."""
    return lease.spec.exporter_ref.name if lease.spec.exporter_ref is not None else ""


def _turn(lease: Lease) -> tuple[str, str]:
    return pinned(lease), lease.metadata.name
