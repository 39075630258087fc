"""Conditions on any object: set one, keep the order, move the time only on a change."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from bullpen.api.meta import Condition, ConditionStatus


def condition(
    found: tuple[Condition, ...],
    type: str,
    *,
    status: bool,
    reason: str,
    message: str = "",
    generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """Return ``found`` with one condition set; it keeps its position, a new one is appended.

    The transition time changes only when the status does. ``kubectl wait`` only accepts a
    condition that was observed for the current ``generation``.
    """
    wanted = ConditionStatus.TRUE if status else ConditionStatus.FALSE
    old = get(found, type)
    if old is None:
        new = Condition(
            type=type,
            status=wanted,
            reason=reason,
            message=message,
            observed_generation=generation,
            last_transition_time=now,
        )
        return (*found, new)
    since = old.last_transition_time if old.status is wanted else now
    new = replace(
        old,
        status=wanted,
        reason=reason,
        message=message,
        observed_generation=generation,
        last_transition_time=since,
    )
    return tuple(new if item.type == type else item for item in found)


def get(found: tuple[Condition, ...], type: str) -> Condition | None:
    return next((item for item in found if item.type == type), None)


def holds(found: tuple[Condition, ...], type: str) -> bool:
    """Whether the condition is present and True."""
    item = get(found, type)
    return item is not None and item.status is ConditionStatus.TRUE


def last(found: tuple[Condition, ...], type: str) -> tuple[Condition, ...]:
    """``found`` with one type moved to the end, where Jumpstarter's client looks for it."""
    rest = tuple(item for item in found if item.type != type)
    chosen = tuple(item for item in found if item.type == type)
    return rest + chosen
