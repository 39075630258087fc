"""How leases take, keep and give back exporters: plans of ordered writes, and their repair.

An exporter's ``status.leaseRef`` says which lease holds it, and the lease's status says which
exporter it holds. They are two objects, so every change is a plan: status writes in a fixed
order, each refused if its object changed since it was read. An assignment takes all its
exporters, then writes its leases:

    take a ─► take b ─► …  ─► lease of a ─► lease of b ─► …
                        │
                        └ committed

If an exporter cannot be taken, those taken before it are freed again. A crash at any point,
or a manual edit, leaves exporters and leases inconsistent. The next pass repairs this: before
the commit it frees what was taken, after it finishes the assignment. It never gives one
exporter to two leases.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, auto

from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease
from bullpen.api.meta import LocalObjectReference
from bullpen.core.leases import lifecycle
from bullpen.core.leases.access import Approval

Write = Exporter | Lease
"""An object with its new status and the resource version that its writer read."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Status writes, to be made in order, each only if all before it were made."""

    writes: tuple[Write, ...]
    committed: int = 1
    """After so many writes the plan is not undone any more. The writes before take exporters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One lease of an assignment, the exporter it gets, and the approval that allows it."""

    lease: Lease
    exporter: Exporter
    approval: Approval


def assign(parts: Sequence[Part], *, now: datetime) -> Plan:
    """Give every lease its exporter, or none of them any."""
    taken = [_taken(part.exporter, part.lease, _next_epoch(part.exporter)) for part in parts]
    told = [
        _assigned(part.lease, exporter, part.approval, now)
        for part, exporter in zip(parts, taken, strict=True)
    ]
    return Plan((*taken, *told), committed=len(taken))


def undo(plan: Plan, written: Sequence[Write]) -> Plan:
    """Free what ``plan`` took, in reverse order, if a write was refused before the commit.

    ``written``: the objects as they were written.
    """
    taken = written if len(written) < plan.committed else ()
    freed = (_freed(value) for value in reversed(taken) if isinstance(value, Exporter))
    return Plan(tuple(freed), committed=0)


def finish(lease: Lease, exporter: Exporter, approval: Approval, *, now: datetime) -> Plan:
    """Write the lease of an assignment whose exporter is already taken."""
    return Plan((_assigned(lease, exporter, approval, now),))


def retake(lease: Lease, exporter: Exporter) -> Plan:
    """Take an exporter again that lost the reference to its active lease."""
    return Plan((_taken(exporter, lease, lease.status.epoch),))


def free(exporter: Exporter) -> Plan:
    return Plan((_freed(exporter),))


def hand_over(lease: Lease, exporter: Exporter, *, maximum: timedelta | None) -> Plan:
    """Transfer an active lease to the client its spec names.

    The exporter's epoch is incremented first: a crash then costs a number, never a fence.
    """
    epoch = _next_epoch(exporter)
    counted = replace(exporter, status=replace(exporter.status, lease_epoch=epoch))
    status = lifecycle.handed_over(lease, epoch=epoch, maximum=maximum)
    return Plan((counted, replace(lease, status=status)))


def end(lease: Lease, exporter: Exporter | None, *, reason: str, now: datetime) -> Plan:
    """End a lease, then free its exporter: in this order no exporter is assigned twice."""
    message = lifecycle.end_message(reason)
    status = lifecycle.ended(lease, reason=reason, message=message, now=now)
    ended = replace(lease, status=status)
    if exporter is None or exporter.status.lease_uid != lease.metadata.uid:
        return Plan((ended,))
    return Plan((ended, _freed(exporter)))


def _next_epoch(exporter: Exporter) -> int:
    return exporter.status.lease_epoch + 1


def _taken(exporter: Exporter, lease: Lease, epoch: int) -> Exporter:
    reference, uid = LocalObjectReference(name=lease.metadata.name), lease.metadata.uid
    status = replace(exporter.status, lease_ref=reference, lease_uid=uid, lease_epoch=epoch)
    return replace(exporter, status=status)


def _freed(exporter: Exporter) -> Exporter:
    return replace(exporter, status=replace(exporter.status, lease_ref=None, lease_uid=""))


def _assigned(lease: Lease, exporter: Exporter, approval: Approval, now: datetime) -> Lease:
    status = lifecycle.assigned(
        lease,
        exporter=exporter.metadata.name,
        approval=approval,
        epoch=exporter.status.lease_epoch,
        now=now,
    )
    return replace(lease, status=status)


class Mend(Enum):
    """How to repair an exporter and a lease that disagree."""

    NOTHING = auto()
    FREE = auto()
    """Clear the exporter's reference: no open lease corresponds to it."""

    FINISH = auto()
    """The exporter is assigned; write the lease's status."""

    RETAKE = auto()
    """The lease is active but its exporter lost the reference and is free: assign it again."""

    END_REMOVED = auto()
    """The lease is active on an exporter that was deleted, or deleted and created again."""

    END_TAKEN = auto()
    """The lease is active on an exporter that another lease holds."""


@dataclass(frozen=True, slots=True)
class Partner:
    """Another lease of the same assignment, and the exporter whose ``leaseRef`` names it."""

    lease: Lease | None
    exporter: Exporter | None


def mend_exporter(
    exporter: Exporter, lease: Lease | None, partners: Iterable[Partner] = ()
) -> Mend:
    """What to do about an exporter whose ``leaseRef`` names ``lease``."""
    if exporter.status.lease_ref is None:
        return Mend.NOTHING
    if lease is None or lease.status.ended or not _taken_by(exporter, lease):
        return Mend.FREE
    held = lease.status.exporter_ref
    if held is None:
        return Mend.FINISH if _committed(tuple(partners)) else Mend.FREE
    return Mend.NOTHING if held.name == exporter.metadata.name else Mend.FREE


def _committed(partners: Sequence[Partner]) -> bool:
    """Whether all exporters of an assignment were taken.

    A lease is written after all exporters are taken, and keeps the name of its exporter when it
    ends. So one written lease is enough, even if its exporter is free again.
    """
    if any(p.lease is not None and p.lease.status.exporter_ref is not None for p in partners):
        return True
    return all(
        partner.lease is not None
        and partner.exporter is not None
        and _taken_by(partner.exporter, partner.lease)
        for partner in partners
    )


def mend_lease(lease: Lease, exporter: Exporter | None) -> Mend:
    """What to do about an active lease, given the exporter its status names."""
    assert lease.status.exporter_ref is not None
    assert not lease.status.ended
    if exporter is None:
        return Mend.END_REMOVED
    if exporter.status.lease_ref is None:
        # An exporter that was created again under the old name never had this epoch.
        same = exporter.status.lease_epoch == lease.status.epoch
        return Mend.RETAKE if same else Mend.END_REMOVED
    return Mend.NOTHING if _taken_by(exporter, lease) else Mend.END_TAKEN


def _taken_by(exporter: Exporter, lease: Lease) -> bool:
    """Whether this very lease holds the exporter, not a deleted lease of the same name."""
    ref = exporter.status.lease_ref
    named = ref is not None and ref.name == lease.metadata.name
    return named and exporter.status.lease_uid == lease.metadata.uid
