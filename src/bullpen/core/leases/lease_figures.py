"""What a change of a lease counts for: requested, refused, assigned after a wait, or ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from bullpen.api.kinds.lease import Lease
from bullpen.core import conditions
from bullpen.core.leases import lifecycle

REFUSALS = ("Invalid", "Unsatisfiable")
"""Conditions of leases that are never served."""


@dataclass(frozen=True, slots=True)
class Requested:
    pass


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str


@dataclass(frozen=True, slots=True)
class Assigned:
    exporter: str
    waited: timedelta
    """By the times of the lease, which are whole seconds."""

    at_once: bool
    """Whether an exporter was free, so that the lease never had to wait."""


@dataclass(frozen=True, slots=True)
class Ended:
    reason: str
    held: timedelta | None
    """How long it had an exporter; None if it never had one."""


Figure = Requested | Refused | Assigned | Ended


def figures(old: Lease | None, new: Lease, *, since: datetime) -> Iterator[Figure]:
    """What the change from ``old`` to ``new`` counts for.

    What happened before ``since``, when counting began, is not counted: a process that starts
    sees all open leases for the first time.
    """
    created, status = new.metadata.creation_timestamp, new.status
    if created is None:
        return
    if old is None and created >= since:
        yield Requested()
    refusal = _refusal(new)
    if refusal and not (old is not None and _refusal(old)) and created >= since:
        yield Refused(refusal)
    begin = status.begin_time
    had = old is not None and old.status.begin_time is not None
    if begin is not None and begin >= since and not had and status.exporter_ref is not None:
        due = max(created, lifecycle.begins_at(new.spec) or created)
        yield Assigned(
            exporter=status.exporter_ref.name,
            waited=max(begin - due, timedelta(0)),
            at_once=old is None or conditions.get(old.status.conditions, "Pending") is None,
        )
    was_over = old is not None and old.status.ended
    if status.ended and not was_over and (status.end_time or since) >= since:
        found = conditions.get(status.conditions, "Ready")
        held = status.end_time - begin if begin is not None and status.end_time else None
        yield Ended(reason=found.reason if found is not None else "", held=held)


def measured_wait(
    lease: Lease, recorded: timedelta, *, now: datetime, known_for: timedelta | None
) -> timedelta:
    """How long a lease waited that was assigned now, finer than its times, which are whole seconds.

    ``recorded`` is the wait by these times. ``known_for`` is how long this process has known the
    request; None if it was assigned when it was first seen. A booked lease waits from its begin.
    """
    created, begins = lease.metadata.creation_timestamp, lifecycle.begins_at(lease.spec)
    if created is not None and begins is not None and begins > created:
        return max(now - begins, timedelta(0))
    return recorded if known_for is None else known_for


def _refusal(lease: Lease) -> str:
    """Why the lease is never served; empty if it may be."""
    for name in REFUSALS:
        found = conditions.get(lease.status.conditions, name)
        if found is not None and conditions.holds(lease.status.conditions, name):
            return found.reason
    return ""
