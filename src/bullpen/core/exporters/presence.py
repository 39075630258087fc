"""Whether an exporter is online, from the connections it has, and whether it got stuck."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from bullpen.api.kinds.exporter import Exporter, ExporterStatus, ExporterStatusValue
from bullpen.api.meta import Condition
from bullpen.core.conditions import condition, get, holds

GRACE = timedelta(seconds=3)
"""How long an exporter may be disconnected before it counts as offline.

Longer than its own retry interval (1 s), shorter than the promised 5 s. One whose machine was
silent until its connection was closed counts as offline at once: it cannot know that it must
reconnect.
"""

START_GRACE = timedelta(seconds=15)
"""The grace period of an exporter that has not reconnected since the service started.

Thousands may be reconnecting, and a running exporter takes no longer than this.
"""

USABLE = frozenset({None, ExporterStatusValue.UNSPECIFIED, ExporterStatusValue.AVAILABLE})
"""Statuses of an exporter that can take a lease. Old exporters never report a status."""


HOOK_PATIENCE = timedelta(seconds=150)
"""Slightly more than the default time limit of a hook, 120 s (configurable per exporter)."""

FAILURE_PATIENCE = timedelta(seconds=5)
"""An exporter whose hook failed releases its lease by itself a second later."""

_PATIENCE = {
    ExporterStatusValue.BEFORE_LEASE_HOOK: HOOK_PATIENCE,
    ExporterStatusValue.AFTER_LEASE_HOOK: HOOK_PATIENCE,
    ExporterStatusValue.BEFORE_LEASE_HOOK_FAILED: FAILURE_PATIENCE,
    ExporterStatusValue.AFTER_LEASE_HOOK_FAILED: FAILURE_PATIENCE,
}


def patience(exporter: Exporter) -> timedelta:
    """How long an exporter may go on before it is told that its lease ended.

    If a Jumpstarter 0.9 exporter is told in the middle of a hook, it reports that it is
    available while the hook still runs, or never reports it again after the hook failed, or
    releases the next lease.
    """
    status = exporter.status.exporter_status
    return _PATIENCE.get(status, timedelta(0)) if status is not None else timedelta(0)


def gone_at(exporter: Exporter, missed: datetime, *, now: datetime) -> datetime:
    """When an exporter counts as offline that does so at ``missed`` as far as this process knows.

    Around a change of leader, another process may have seen the exporter later. Two processes
    that each trusted only their own view would overwrite each other as fast as they can write.
    """
    heard = exporter.status.last_seen
    # A time in the future was written before the clock was set back.
    return max(missed, heard + GRACE) if heard is not None and heard <= now else missed


def online(exporter: Exporter) -> bool:
    return holds(exporter.status.conditions, "Online")


def registered(exporter: Exporter) -> bool:
    return holds(exporter.status.conditions, "Registered")


def idle(exporter: Exporter) -> bool:
    return exporter.status.exporter_status in USABLE


def leaving(exporter: Exporter) -> bool:
    """Whether the exporter announced that it is leaving. It may still be connected briefly."""
    item = get(exporter.status.conditions, "Online")
    said = item is not None and item.reason == "StatusReported"
    return said and exporter.status.exporter_status is ExporterStatusValue.OFFLINE


def settling(exporter: Exporter) -> bool:
    """Whether it has no lease but does not report that it is available: a hook, or a hang."""
    status = exporter.status
    away = status.exporter_status is ExporterStatusValue.OFFLINE
    return status.lease_ref is None and not idle(exporter) and not away


def stuck(exporter: Exporter) -> bool:
    return holds(exporter.status.conditions, "Stuck")


def seen(exporter: Exporter, *, now: datetime) -> ExporterStatus:
    """The status of an exporter that has just connected."""
    status = exporter.status
    if status.exporter_status is ExporterStatusValue.OFFLINE:
        status = _known_again(status)
    conditions = _said(exporter, "Online", status=True, reason="Seen", message="connected", now=now)
    return replace(status, conditions=conditions, last_seen=now)


def _known_again(status: ExporterStatus) -> ExporterStatus:
    """The status of an exporter that was offline, as far as it is known.

    An exporter that reconnects does not repeat its state. Without a lease, only Available is
    certain to be true still: the report that followed any other state may have been lost.
    """
    known = status.status_before_loss
    certain = status.lease_ref is not None or known is ExporterStatusValue.AVAILABLE
    return replace(
        status,
        exporter_status=known if known and certain else ExporterStatusValue.UNSPECIFIED,
        status_before_loss=None,
        status_message="",
    )


def stale(exporter: Exporter) -> bool:
    """Whether the conditions were observed for an older spec."""
    now = exporter.metadata.generation
    return any(item.observed_generation < now for item in exporter.status.conditions)


def confirmed(exporter: Exporter) -> ExporterStatus:
    """The same conditions for the current spec: none of them depends on the spec."""
    now = exporter.metadata.generation
    conditions = tuple(
        replace(item, observed_generation=now) for item in exporter.status.conditions
    )
    return replace(exporter.status, conditions=conditions)


def registered_anew(exporter: Exporter) -> ExporterStatus:
    """The status of an exporter that registers again: what it reported before it left is void."""
    if exporter.status.exporter_status is not ExporterStatusValue.OFFLINE:
        return exporter.status
    return _known_again(replace(exporter.status, status_before_loss=None))


def lost(exporter: Exporter, *, now: datetime) -> ExporterStatus:
    """The status of an exporter that lost its connection. It keeps its lease."""
    conditions = _said(
        exporter,
        "Online",
        status=False,
        reason="Offline",
        message="the connection was lost; is the exporter running?",
        now=now,
    )
    before = exporter.status.exporter_status
    return replace(
        exporter.status,
        conditions=conditions,
        exporter_status=ExporterStatusValue.OFFLINE,
        status_before_loss=before if before is not ExporterStatusValue.OFFLINE else None,
        status_message="connection lost",
    )


def reported(
    exporter: Exporter, *, value: ExporterStatusValue, message: str, now: datetime
) -> ExporterStatus:
    """The status after the exporter reported what it is doing."""
    up = value is not ExporterStatusValue.OFFLINE
    conditions = _said(
        exporter,
        "Online",
        status=up,
        reason="StatusReported",
        message=message,
        now=now,
    )
    return replace(
        exporter.status,
        exporter_status=value,
        status_before_loss=None,
        status_message=message,
        last_seen=now,
        conditions=conditions,
    )


def hung(exporter: Exporter, *, since: datetime, now: datetime) -> ExporterStatus:
    """The status of an exporter that should have become available long ago.

    This is only reported, never acted on: a hook may take long, and people decide whether to
    wait or to restart the exporter.
    """
    said = exporter.status.exporter_status or ExporterStatusValue.UNSPECIFIED
    conditions = _said(
        exporter,
        "Stuck",
        status=True,
        reason="NotAvailable",
        message=f"reports {said} since its lease ended at {since:%H:%M:%S} UTC;"
        " if its hook is not running, restart the exporter",
        now=now,
    )
    return replace(exporter.status, conditions=conditions)


def settled(exporter: Exporter, *, now: datetime) -> ExporterStatus:
    """The status of an exporter that is no longer stuck."""
    conditions = _said(
        exporter,
        "Stuck",
        status=False,
        reason="Settled",
        message="the exporter can be leased again",
        now=now,
    )
    return replace(exporter.status, conditions=conditions)


def _said(
    exporter: Exporter, type: str, *, status: bool, reason: str, message: str, now: datetime
) -> tuple[Condition, ...]:
    """The exporter's conditions with one set, observed for its current spec."""
    return condition(
        exporter.status.conditions,
        type,
        status=status,
        reason=reason,
        message=message,
        generation=exporter.metadata.generation,
        now=now,
    )
