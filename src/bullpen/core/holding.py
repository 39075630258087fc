"""Whether an exporter and a lease agree on holding each other, and what mends it.

An assignment is two writes: first the exporter's ``status.leaseRef``, which is the
commit point, then the lease's status. A crash between them, or somebody's edit,
leaves them apart; the next pass brings them together again, never by giving one
exporter to two leases.
"""

from __future__ import annotations

from enum import Enum, auto

from bullpen.api.exporter import Exporter
from bullpen.api.lease import Lease


class Mend(Enum):
    NOTHING = auto()
    FREE = auto()
    """Clear the exporter's reference: no live lease stands behind it."""

    FINISH = auto()
    """The exporter is taken; write the lease's half."""

    RETAKE = auto()
    """The lease is active but its exporter forgot it and is free: take it again."""

    END = auto()
    """The lease is active on an exporter that is gone or somebody else's."""


def mend_exporter(exporter: Exporter, lease: Lease | None) -> Mend:
    """What to do about an exporter whose ``leaseRef`` names ``lease``."""
    if exporter.status.lease_ref is None:
        return Mend.NOTHING
    if lease is None or lease.status.ended:
        return Mend.FREE
    held = lease.status.exporter_ref
    if held is None:
        wanted = _could_have(lease, exporter)
        return Mend.FINISH if wanted else Mend.FREE
    return Mend.NOTHING if held.name == exporter.metadata.name else Mend.FREE


def mend_lease(lease: Lease, exporter: Exporter | None) -> Mend:
    """What to do about an active lease, given the exporter its status names."""
    assert lease.status.exporter_ref is not None
    assert not lease.status.ended
    if exporter is None:
        return Mend.END
    ref = exporter.status.lease_ref
    if ref is None:
        return Mend.RETAKE
    return Mend.NOTHING if ref.name == lease.metadata.name else Mend.END


def _could_have(lease: Lease, exporter: Exporter) -> bool:
    """Guards against a new lease that only shares the name of the one that took it."""
    pinned = lease.spec.exporter_ref
    if pinned is not None and pinned.name and pinned.name != exporter.metadata.name:
        return False
    return lease.spec.selector.selector().matches(exporter.metadata.labels)
