"""Whether an exporter and a lease agree on who holds the exporter, and how to repair it.

An assignment is two writes: first the exporter's ``status.leaseRef``, which is the commit
point, then the lease's status. A crash between them, or a manual edit, leaves them
inconsistent. The next pass repairs this, and never by giving one exporter to two leases.
"""

from __future__ import annotations

from enum import Enum, auto

from bullpen.api.exporter import Exporter
from bullpen.api.lease import Lease


class Mend(Enum):
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


def mend_exporter(exporter: Exporter, lease: Lease | None) -> Mend:
    """What to do about an exporter whose ``leaseRef`` names ``lease``."""
    if exporter.status.lease_ref is None:
        return Mend.NOTHING
    if lease is None or lease.status.ended or not _taken_by(exporter, lease):
        return Mend.FREE
    held = lease.status.exporter_ref
    if held is None:
        return Mend.FINISH
    return Mend.NOTHING if held.name == exporter.metadata.name else Mend.FREE


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
