"""Whether an exporter is online, from the connections it has."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from bullpen.api.exporter import Exporter, ExporterStatus, ExporterStatusValue
from bullpen.core.conditions import condition, holds

GRACE = timedelta(seconds=3)
"""How long an exporter may be without a connection before it counts as offline.

Longer than its own retry (1 s), shorter than the promised 5 s.
"""

USABLE = frozenset({None, ExporterStatusValue.UNSPECIFIED, ExporterStatusValue.AVAILABLE})
"""What an exporter that can take a lease says. Old ones never say anything."""


def online(exporter: Exporter) -> bool:
    return holds(exporter.status.conditions, "Online")


def registered(exporter: Exporter) -> bool:
    return holds(exporter.status.conditions, "Registered")


def idle(exporter: Exporter) -> bool:
    return exporter.status.exporter_status in USABLE


def seen(exporter: Exporter, *, now: datetime) -> ExporterStatus:
    """The status of an exporter that has just connected."""
    status = exporter.status
    if status.exporter_status is ExporterStatusValue.OFFLINE:
        status = replace(status, exporter_status=ExporterStatusValue.UNSPECIFIED)
    conditions = condition(
        status.conditions, "Online", status=True, reason="Seen", message="connected", now=now
    )
    return replace(status, conditions=conditions, last_seen=now)


def lost(exporter: Exporter, *, now: datetime) -> ExporterStatus:
    """The status of an exporter whose connection is gone. Its lease stays its own."""
    conditions = condition(
        exporter.status.conditions,
        "Online",
        status=False,
        reason="Offline",
        message="the connection was lost; is the exporter running?",
        now=now,
    )
    return replace(
        exporter.status,
        conditions=conditions,
        exporter_status=ExporterStatusValue.OFFLINE,
        status_message="connection lost",
    )


def reported(
    exporter: Exporter, *, value: ExporterStatusValue, message: str, now: datetime
) -> ExporterStatus:
    """The status after the exporter said what it is doing."""
    up = value is not ExporterStatusValue.OFFLINE
    conditions = condition(
        exporter.status.conditions,
        "Online",
        status=up,
        reason="StatusReported" if up else "Offline",
        message=message,
        now=now,
    )
    return replace(
        exporter.status,
        exporter_status=value,
        status_message=message,
        last_seen=now,
        conditions=conditions,
    )
