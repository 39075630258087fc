"""The state of a target in one word, for lists, pages and metrics."""

from __future__ import annotations

from enum import StrEnum

from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import SET_NAME
from bullpen.api.kinds.virtualtargetpool import POOL_NAME
from bullpen.core.exporters import presence


class TargetState(StrEnum):
    FREE = "free"
    LEASED = "leased"
    BUSY = "busy"
    """Online, not leased and not ready for a lease: it prepares or cleans up."""

    STARTING = "starting"
    DISABLED = "disabled"
    OFFLINE = "offline"


def pool_of(exporter: Exporter) -> str:
    """The pool that an exporter is a member of; empty if none."""
    labels = exporter.metadata.labels
    return labels.get(SET_NAME) or labels.get(POOL_NAME) or ""


def target_state(exporter: Exporter) -> TargetState:
    if exporter.status.lease_ref is not None:
        return TargetState.LEASED
    if not presence.online(exporter):
        started = exporter.status.last_seen is not None or presence.registered(exporter)
        is_member = bool(pool_of(exporter))
        return TargetState.OFFLINE if started or not is_member else TargetState.STARTING
    if not exporter.spec.enabled:
        return TargetState.DISABLED
    return TargetState.FREE if presence.idle(exporter) else TargetState.BUSY
