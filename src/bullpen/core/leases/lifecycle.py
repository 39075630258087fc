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

from bullpen.api.kinds.lease import (
    ENDED_LABEL,
    IDLE_TAG,
    Lease,
    LeaseSpec,
    LeaseStatus,
    idle_problem,
)
from bullpen.api.meta import ConditionStatus, LocalObjectReference
from bullpen.core import conditions
from bullpen.core.conditions import condition, last
from bullpen.core.leases import preemption, sessions
from bullpen.core.leases.access import Approval
from bullpen.kit import durations, times

TAG_PREFIX = "metadata.jumpstarter.dev/"


class Phase(Enum):
    SCHEDULED = auto()
    """The begin time is in the future."""

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
    """The begin time the lease was booked for; None for as soon as possible."""
    if spec.begin_time is None and spec.end_time is not None and spec.duration is not None:
        return times.shifted(spec.end_time, -spec.duration)
    return spec.begin_time


def expires_at(lease: Lease) -> datetime | None:
    """When the lease must end; None if it has no end.

    This is the end given by the spec, but no later than the maximum duration after the lease
    got its exporter.
    """
    asked, begin, maximum = _ends_at(lease), lease.status.begin_time, lease.status.maximum_duration
    if begin is None or maximum is None:
        return asked
    allowed = times.shifted(begin, maximum)
    return allowed if asked is None else min(asked, allowed)


def lasts(lease: Lease, *, now: datetime) -> timedelta | None:
    """The duration from begin to end according to the spec; None if the lease has no end.

    Every maximum applies to this duration, whichever of begin, end and duration were given. The
    begin is the moment the lease got its exporter; before that, the booked begin.
    """
    end = _ends_at(lease)
    if end is None:
        return lease.spec.duration
    return end - (lease.status.begin_time or begins_at(lease.spec) or now)


def longer(lease: Lease, before: Lease, *, now: datetime) -> bool:
    """Whether the lease lasts longer than it did before the change."""
    new, old = lasts(lease, now=now), lasts(before, now=now)
    return old is not None and (new is None or new > old)


def beyond_maximum(lease: Lease, *, now: datetime) -> bool:
    """Whether the spec of an active lease asks for more than the maximum duration."""
    maximum, asked = lease.status.maximum_duration, lasts(lease, now=now)
    return maximum is not None and (asked is None or asked > maximum)


def _ends_at(lease: Lease) -> datetime | None:
    """When the lease ends according to its spec.

    An explicit end wins over a duration, and a booked begin over the actual begin: a client
    that booked 14:00 to 15:00 and got its exporter at 14:20 still leaves at 15:00.
    """
    spec = lease.spec
    if spec.end_time is not None:
        return spec.end_time
    if spec.duration is None:
        return None
    begin = spec.begin_time or lease.status.begin_time
    return times.shifted(begin, spec.duration) if begin is not None else None


def holds_at_most(lease: Lease) -> timedelta | None:
    """How long the lease may have its exporter, whatever the wall clock says; None for no limit.

    A lease that was booked to a moment ends when the wall clock shows that moment.
    """
    spec, maximum = lease.spec, lease.status.maximum_duration
    duration = spec.duration if spec.begin_time is None and spec.end_time is None else None
    return min((most for most in (duration, maximum) if most is not None), default=None)


def unmatched_until(lease: Lease, wait: timedelta) -> datetime:
    """Until when a lease waits although no exporter and no pool matches it."""
    asked = lease.metadata.creation_timestamp
    assert asked is not None
    return times.shifted(max(begins_at(lease.spec) or asked, asked), wait)


def length(spec: LeaseSpec) -> timedelta | None:
    """The duration shown to users; None without an end. Limits apply to ``lasts`` instead."""
    if spec.duration is not None:
        return spec.duration
    if spec.begin_time is not None and spec.end_time is not None:
        return spec.end_time - spec.begin_time
    return None


def idle_at(lease: Lease) -> datetime | None:
    """When the lease ends because no client is connected; None if it does not, as things are.

    The time counts from the end of the last connection, and before the first one from the begin.
    """
    status = lease.status
    if status.idle_timeout is None or status.begin_time is None or status.ended:
        return None
    since = sessions.idle_since(status.sessions, begin=status.begin_time)
    return times.shifted(since, status.idle_timeout) if since is not None else None


def _idle_timeout(spec: LeaseSpec, approval: Approval) -> timedelta | None:
    """The idle time-out of a lease: its client may ask for a shorter one than it is allowed."""
    asked = spec.tags.get(IDLE_TAG, "")
    if not asked or idle_problem(asked):
        return approval.idle
    wanted = durations.parse(asked)
    return wanted if approval.idle is None else min(wanted, approval.idle)


def due_to_end(
    lease: Lease,
    *,
    client_exists: bool = True,
    held: timedelta | None = None,
    now: datetime,
) -> str | None:
    """The reason why an open lease must end now, or None.

    ``held``: how long it has had its exporter in steady time, if it has one. The lease ends at its
    end by the wall clock or by this, whichever comes first: a clock that was set back makes no
    lease longer.
    """
    if lease.status.ended:
        return None
    if lease.spec.release:
        return "Preempted" if preemption.told(lease.status.conditions) else "Released"
    end = expires_at(lease)
    if end is not None and end <= now:
        return "Expired"
    most = holds_at_most(lease)
    if held is not None and most is not None and held >= most:
        return "Expired"
    idle = idle_at(lease)
    if idle is not None and idle <= now:
        return "Idle"
    orphaned = lease.status.exporter_ref is not None and not client_exists
    return "ClientRemoved" if orphaned else None


def holder(lease: Lease) -> str:
    """The client that holds the exporter now, or will get it."""
    held = lease.status.client_ref
    return held.name if held is not None else lease.spec.client_ref.name


def handing_over(lease: Lease) -> bool:
    """Whether the lease is being transferred to another client than its current holder."""
    return holder(lease) != lease.spec.client_ref.name


def waiting(lease: Lease, *, reason: str, message: str, now: datetime) -> LeaseStatus:
    """The status of a waiting lease, with the reason for the wait."""
    found = condition(
        lease.status.conditions,
        "Pending",
        status=True,
        reason=reason,
        message=message,
        generation=lease.metadata.generation,
        now=now,
    )
    return replace(lease.status, conditions=found)


def says_waiting(lease: Lease, *, reason: str, message: str) -> bool:
    """Whether the status already says that the lease waits, and why."""
    said = conditions.get(lease.status.conditions, "Pending")
    return (
        said is not None
        and said.status is ConditionStatus.TRUE
        and said.reason == reason
        and said.message == message
        and said.observed_generation == lease.metadata.generation
    )


def assigned(
    lease: Lease, *, exporter: str, approval: Approval, epoch: int, now: datetime
) -> LeaseStatus:
    """The status of a lease that has its exporter."""
    generation = lease.metadata.generation
    found = condition(
        lease.status.conditions,
        "Pending",
        status=False,
        reason="Ready",
        message=f"exporter {exporter} is assigned",
        generation=generation,
        now=now,
    )
    found = condition(
        found,
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
        priority=approval.priority,
        spot_access=approval.spot,
        maximum_duration=approval.maximum,
        idle_timeout=_idle_timeout(lease.spec, approval),
        epoch=epoch,
        conditions=last(found, "Ready"),
    )


def handed_over(lease: Lease, *, epoch: int, maximum: timedelta | None) -> LeaseStatus:
    """The status of a lease that was transferred to the client its spec names.

    The new epoch closes every stream of the previous client. ``maximum`` is how long the new
    client may keep the lease.
    """
    return replace(
        lease.status, client_ref=lease.spec.client_ref, epoch=epoch, maximum_duration=maximum
    )


def limited(lease: Lease, *, maximum: timedelta | None, now: datetime) -> LeaseStatus:
    """The status of an active lease limited to ``maximum``, and whether its spec asks for more.

    The condition is absent until a spec of the lease asks for more.
    """
    status = replace(lease.status, maximum_duration=maximum)
    binds = beyond_maximum(replace(lease, status=status), now=now)
    if not binds and not conditions.holds(status.conditions, "Limited"):
        return status
    assert maximum is not None or not binds
    text = f"the access policies allow {lease.spec.client_ref.name} at most"
    found = condition(
        status.conditions,
        "Limited",
        status=binds,
        reason="MaximumDuration" if binds else "WithinMaximum",
        message=f"{text} {durations.text(maximum)}, after which the lease ends"
        if binds and maximum is not None
        else "the requested duration is within the maximum",
        generation=lease.metadata.generation,
        now=now,
    )
    return replace(status, conditions=last(found, "Ready"))


def fenced(old: Lease | None, new: Lease | None) -> int | None:
    """The epoch up to which a lease's streams must be closed after a change; None if none must."""
    if new is None:
        return old.status.epoch if old is not None else None
    if new.status.ended:
        return new.status.epoch
    before = old.status.epoch if old is not None else 0
    return new.status.epoch - 1 if new.status.epoch > before else None


def ended(lease: Lease, *, reason: str, message: str, now: datetime) -> LeaseStatus:
    """The final status. The exporter's name is kept."""
    generation = lease.metadata.generation
    found = condition(
        lease.status.conditions,
        "Pending",
        status=False,
        reason=reason,
        message=message,
        generation=generation,
        now=now,
    )
    found = condition(
        found,
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
        conditions=last(found, "Ready"),
        sessions=sessions.closed(lease.status.sessions, now=now),
    )


def labelled_ended(lease: Lease) -> Lease:
    """The lease with the label by which lists and watches leave out ended leases.

    An open lease never gets it: every process would take it for deleted.
    """
    assert lease.status.ended
    labels = {**lease.metadata.labels, ENDED_LABEL: "true"}
    return replace(lease, metadata=replace(lease.metadata, labels=labels))


def without_ended_label(lease: Lease) -> Lease:
    """An open lease without the label of ended leases; other leases are unchanged."""
    if lease.status.ended or ENDED_LABEL not in lease.metadata.labels:
        return lease
    labels = {key: text for key, text in lease.metadata.labels.items() if key != ENDED_LABEL}
    return replace(lease, metadata=replace(lease.metadata, labels=labels))


def kept_until(lease: Lease, retention: timedelta) -> datetime:
    """When an ended lease may be deleted."""
    assert lease.metadata.creation_timestamp is not None
    return times.shifted(lease.status.end_time or lease.metadata.creation_timestamp, retention)


def refused(lease: Lease, *, type: str, reason: str, message: str, now: datetime) -> LeaseStatus:
    """The final status of a lease that can never be served: Unsatisfiable or Invalid."""
    found = condition(
        lease.status.conditions,
        type,
        status=True,
        reason=reason,
        message=message,
        generation=lease.metadata.generation,
        now=now,
    )
    return replace(lease.status, ended=True, end_time=now, conditions=last(found, type))


def end_message(reason: str) -> str:
    """The message shown to users when a lease ends."""
    return {
        "Released": "the lease was released",
        "Expired": "the lease reached its end time",
        "Idle": "no client was connected for the idle time-out of the lease",
        "Evicted": "a lease with regular access took the exporter",
        "Preempted": "a claim with admin access took the exporter",
        "ClientRemoved": "the client of the lease was removed",
        "ExporterRemoved": "the exporter of the lease was removed",
        "ExporterTaken": "the exporter of the lease was assigned to another lease",
    }[reason]
