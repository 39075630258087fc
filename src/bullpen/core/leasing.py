"""The life of one lease: when it may begin, when it must end, and how its status reads.

    scheduled ──► waiting ──► active ──► ended
                     └────────────────────┘

The status texts are read by Jumpstarter's client: once ``Ready`` exists it must be
the last condition, ``Pending`` turns False when the wait is over, and the word for
running out appears in no message, because the client takes it for a stale token.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum, auto

from bullpen.api.lease import Lease, LeaseSpec, LeaseStatus
from bullpen.api.meta import LocalObjectReference
from bullpen.core import sessions
from bullpen.core.conditions import condition, last
from bullpen.kit import times

ENDED_LABEL = "jumpstarter.dev/lease-ended"
TAG_PREFIX = "metadata.jumpstarter.dev/"


class Phase(Enum):
    SCHEDULED = auto()
    """Its begin time has not come."""

    WAITING = auto()
    ACTIVE = auto()
    ENDED = auto()


def phase(lease: Lease, *, now: datetime) -> Phase:
    if lease.status.ended:
        return Phase.ENDED
    if lease.status.exporter_ref is not None and lease.status.begin_time is not None:
        return Phase.ACTIVE
    begin = begins_at(lease.spec)
    return Phase.SCHEDULED if begin is not None and begin > now else Phase.WAITING


def begins_at(spec: LeaseSpec) -> datetime | None:
    """When the lease was booked for; None for as soon as possible."""
    if spec.begin_time is None and spec.end_time is not None and spec.duration is not None:
        return times.shifted(spec.end_time, -spec.duration)
    return spec.begin_time


def expires_at(lease: Lease) -> datetime | None:
    """When the lease must end, or None while it has no end.

    An explicit end wins over a duration, and a booked begin over the actual
    one: a client that booked 14:00 to 15:00 and got its exporter at 14:20 still
    leaves at 15:00.
    """
    spec = lease.spec
    if spec.end_time is not None:
        return spec.end_time
    if spec.duration is None:
        return None
    begin = spec.begin_time or lease.status.begin_time
    return times.shifted(begin, spec.duration) if begin is not None else None


def length(spec: LeaseSpec) -> timedelta | None:
    """How long the lease is meant to be; None for without end."""
    if spec.duration is not None:
        return spec.duration
    if spec.begin_time is not None and spec.end_time is not None:
        return spec.end_time - spec.begin_time
    return None


def due_to_end(lease: Lease, *, now: datetime) -> str | None:
    """The reason why a lease that has not ended must, or None."""
    if lease.status.ended:
        return None
    if lease.spec.release:
        return "Released"
    end = expires_at(lease)
    return "Expired" if end is not None and end <= now else None


def holder(lease: Lease) -> str:
    """The client that has the exporter now, or will get it."""
    held = lease.status.client_ref
    return held.name if held is not None else lease.spec.client_ref.name


def handing_over(lease: Lease) -> bool:
    """Whether another client is to have the exporter than the one that has it."""
    return holder(lease) != lease.spec.client_ref.name


def waiting(lease: Lease, *, reason: str, message: str, now: datetime) -> LeaseStatus:
    """The status of a lease that must wait, and why."""
    conditions = condition(
        lease.status.conditions,
        "Pending",
        status=True,
        reason=reason,
        message=message,
        generation=lease.metadata.generation,
        now=now,
    )
    return replace(lease.status, conditions=conditions)


def assigned(
    lease: Lease, *, exporter: str, priority: int, spot: bool, epoch: int, now: datetime
) -> LeaseStatus:
    """The status of a lease that has its exporter."""
    generation = lease.metadata.generation
    conditions = condition(
        lease.status.conditions,
        "Pending",
        status=False,
        reason="Ready",
        message=f"exporter {exporter} is assigned",
        generation=generation,
        now=now,
    )
    conditions = condition(
        conditions,
        "Ready",
        status=True,
        reason="Ready",
        message=f"exporter {exporter} is ready for use",
        generation=generation,
        now=now,
    )
    return replace(
        lease.status,
        begin_time=now,
        exporter_ref=LocalObjectReference(name=exporter),
        client_ref=lease.spec.client_ref,
        priority=priority,
        spot_access=spot,
        epoch=epoch,
        conditions=last(conditions, "Ready"),
    )


def handed_over(lease: Lease, *, epoch: int) -> LeaseStatus:
    """The status of a lease that has gone to the client its spec names.

    The new epoch shuts out whatever the client before it still has open.
    """
    return replace(lease.status, client_ref=lease.spec.client_ref, epoch=epoch)


def fenced(old: Lease | None, new: Lease | None) -> int | None:
    """Up to which epoch a lease's streams are over after a change; None if all may go on."""
    if new is None:
        return old.status.epoch if old is not None else None
    if new.status.ended:
        return new.status.epoch
    before = old.status.epoch if old is not None else 0
    return new.status.epoch - 1 if new.status.epoch > before else None


def ended(lease: Lease, *, reason: str, message: str, now: datetime) -> LeaseStatus:
    """The final status. Its exporter stays named."""
    generation = lease.metadata.generation
    conditions = condition(
        lease.status.conditions,
        "Pending",
        status=False,
        reason=reason,
        message=message,
        generation=generation,
        now=now,
    )
    conditions = condition(
        conditions,
        "Ready",
        status=False,
        reason=reason,
        message=message,
        generation=generation,
        now=now,
    )
    return replace(
        lease.status,
        ended=True,
        end_time=now,
        conditions=last(conditions, "Ready"),
        sessions=sessions.closed(lease.status.sessions, now=now),
    )


def labelled_ended(lease: Lease) -> Lease:
    """The lease with the label by which lists leave out what is over."""
    labels = {**lease.metadata.labels, ENDED_LABEL: "true"}
    return replace(lease, metadata=replace(lease.metadata, labels=labels))


def refused(lease: Lease, *, type: str, reason: str, message: str, now: datetime) -> LeaseStatus:
    """The final status of a lease that can never be served: Unsatisfiable or Invalid."""
    conditions = condition(
        lease.status.conditions,
        type,
        status=True,
        reason=reason,
        message=message,
        generation=lease.metadata.generation,
        now=now,
    )
    return replace(lease.status, ended=True, end_time=now, conditions=last(conditions, type))


def end_message(reason: str) -> str:
    """What people read about an end."""
    return {
        "Released": "the lease was released",
        "Expired": "the lease reached its end time",
        "Evicted": "a lease with a lasting right to the exporter took it",
        "ClientRemoved": "the client of the lease was removed",
        "ExporterRemoved": "the exporter of the lease was removed",
        "ExporterTaken": "the exporter of the lease was given to another one",
    }[reason]
