"""Who ends for whom: the times of a preemption, and what those who lose their devices are told.

A preemptible claim ends for one of a higher priority. Every lease and claim ends for a claim with
admin access. They are told first and have a grace period; they go on if they are not needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from bullpen.api.meta import Condition, ConditionStatus
from bullpen.core import conditions
from bullpen.core.conditions import condition
from bullpen.kit import times

RETHINK = timedelta(seconds=5)
"""How soon a holder is told the opposite of what it was told last.

While one controller takes over from another, both may be at work and disagree about it.
"""

PREEMPTED = "Preempted"
"""The condition of a lease or claim that ends soon for a claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionTimes:
    """How long a holder keeps its devices although a claim may take them."""

    grace: timedelta = timedelta(minutes=1)
    """From when it is told that it ends."""

    held_min: timedelta = timedelta(minutes=5)
    """From when it got its devices. Admin access does not wait for this."""


PREEMPTION = PreemptionTimes()


@dataclass(frozen=True, slots=True)
class Taker:
    """The claim that a holder ends for."""

    claim: str
    admin: bool = False

    def __str__(self) -> str:
        return f"claim {self.claim} {'with admin access' if self.admin else 'of a higher priority'}"


def told(found: tuple[Condition, ...]) -> bool:
    """Whether the holder was told that it ends."""
    return conditions.holds(found, PREEMPTED)


def ends_at(found: tuple[Condition, ...], *, grace: timedelta, now: datetime) -> datetime:
    """When a holder with these conditions ends, if it is told now at the latest."""
    said = conditions.get(found, PREEMPTED)
    holds = said is not None and said.status is ConditionStatus.TRUE
    return times.shifted(said.last_transition_time if said and holds else now, grace)


def settles_at(found: tuple[Condition, ...]) -> datetime:
    """When a holder with these conditions may be told the opposite."""
    said = conditions.get(found, PREEMPTED)
    return times.EARLIEST if said is None else times.shifted(said.last_transition_time, RETHINK)


def telling(
    found: tuple[Condition, ...],
    by: Taker | None,
    *,
    grace: timedelta,
    generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """The conditions of a holder that ends soon ``by`` a claim; None: not any more.

    They stay as they are until ``settles_at``.
    """
    if told(found) != (by is not None) and settles_at(found) > now:
        return found
    if by is None and conditions.get(found, PREEMPTED) is None:
        return found
    end = times.text(ends_at(found, grace=grace, now=now))
    reason = "NotNeeded"
    if by is not None:
        reason = "AdminAccess" if by.admin else "HigherPriority"
    return condition(
        found,
        PREEMPTED,
        status=by is not None,
        reason=reason,
        message=f"{by} needs its devices; it ends at {end}"
        if by is not None
        else "its devices are not needed for another claim any more",
        generation=generation,
        now=now,
    )
