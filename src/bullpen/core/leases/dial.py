"""May this client connect to its exporter now? Proceed, wait briefly, or refuse.

Jumpstarter's client parses the texts: ``not ready`` with FAILED_PRECONDITION makes it
retry, ``permission denied`` makes it assume that the lease was transferred.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from bullpen.api.kinds.exporter import Exporter, ExporterStatusValue
from bullpen.api.kinds.lease import Lease
from bullpen.core.exporters import presence
from bullpen.core.leases import lifecycle


class Verdict(Enum):
    PROCEED = auto()
    WAIT = auto()
    """An operation in progress will make the connection possible."""

    FAILED_PRECONDITION = auto()
    PERMISSION_DENIED = auto()


@dataclass(frozen=True, slots=True)
class Gate:
    verdict: Verdict
    message: str = ""


PROCEED = Gate(Verdict.PROCEED)

_FAILED = frozenset(
    {
        ExporterStatusValue.BEFORE_LEASE_HOOK_FAILED,
        ExporterStatusValue.AFTER_LEASE_HOOK_FAILED,
    }
)


def gate(lease: Lease, exporter: Exporter | None, *, client: str, listening: bool) -> Gate:
    """Whether ``client`` may be connected through ``lease`` at this moment.

    ``listening``: the exporter has a live Listen stream for this very lease.
    """
    if lease.spec.client_ref.name != client:
        return Gate(
            Verdict.PERMISSION_DENIED,
            f"permission denied: lease {lease.metadata.name} belongs to another client",
        )
    if lease.status.ended:
        return Gate(
            Verdict.FAILED_PRECONDITION,
            f"lease {lease.metadata.name} has ended; request a new lease",
        )
    assigned = lease.status.exporter_ref
    if assigned is None:
        return Gate(Verdict.WAIT, f"lease {lease.metadata.name} has no exporter yet: not ready")
    if exporter is None:
        return Gate(
            Verdict.FAILED_PRECONDITION,
            f"exporter {assigned.name} was removed; request a new lease",
        )
    if lifecycle.handing_over(lease):
        return Gate(Verdict.WAIT, f"lease {lease.metadata.name} is being transferred: not ready")
    status = exporter.status.exporter_status
    said = exporter.status.status_message or status
    if status in _FAILED:
        return Gate(Verdict.FAILED_PRECONDITION, f"exporter {assigned.name} failed: {said}")
    if listening and presence.leaving(exporter):
        return Gate(
            Verdict.FAILED_PRECONDITION, f"exporter {assigned.name} is shutting down: {said}"
        )
    if not listening or status is ExporterStatusValue.AVAILABLE:
        return Gate(Verdict.WAIT, f"exporter {assigned.name} is not ready")
    return PROCEED
