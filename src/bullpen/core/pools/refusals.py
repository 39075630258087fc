"""Writes of members that the API server refused, and when they are tried again.

A write may be forbidden, over a quota or invalid. Nothing announces when that has changed,
so a refused operation is tried again on one member, after a pause that grows with each
refusal. Other operations on the pool go on meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from bullpen.api.kinds.exporterset import RefusedWrite
from bullpen.core.pools.start_throttle import Hold
from bullpen.errors import AlreadyExists, Conflict, LabError, NotFound, Rejected
from bullpen.kit import times
from bullpen.kit.clock import Backoff

BACKOFF = Backoff(first=timedelta(seconds=1), cap=timedelta(minutes=1))
"""The pause after consecutive refusals of one operation."""

RELABEL = "Relabel"
"""The operation that restores labels which registration removed; the others are plan actions."""

_OUTDATED_VIEW = (AlreadyExists, Conflict, NotFound)
"""The object has changed since it was read: the next pass reads it again and decides again."""

_VERBS = {"Create": "create", "Drain": "drain", "Delete": "delete", RELABEL: "label"}

MESSAGE_MAX = 1_000
"""Characters of a refusal that are recorded."""

A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Consecutive refusals of one operation."""

    operation: str
    """Create, Drain, Delete or Relabel."""

    name: str
    """The member of the last attempt."""

    count: int
    at: datetime
    retry_at: datetime
    reason: str
    message: str

    def is_due(self, now: datetime) -> bool:
        """Whether to try again."""
        return not times.is_within(now, self.at, self.retry_at)

    @property
    def condition_reason(self) -> str:
        return f"{self.operation}Refused"

    @property
    def event_reason(self) -> str:
        """Kubernetes' own reasons for the refused writes of a ReplicaSet, where it has them."""
        return f"Failed{self.operation}"

    @property
    def text(self) -> str:
        times = "once" if self.count == 1 else f"{self.count} times in a row"
        return (
            f"the API server refused to {_VERBS[self.operation]} exporter {self.name}, {times}"
            f" ({self.reason}: {self.message}); the next try is at {self.retry_at:%H:%M:%S} UTC"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One write of a member, and its error."""

    operation: str
    name: str
    error: LabError | None = None

    @property
    def refused(self) -> bool:
        return isinstance(self.error, Rejected) and not isinstance(self.error, _OUTDATED_VIEW)


def of(refusals: Iterable[Refusal], operation: str) -> Refusal | None:
    return next((found for found in refusals if found.operation == operation), None)


def permitted(refusal: Refusal | None, wanted: Sequence[A], *, now: datetime) -> Sequence[A]:
    """The operations to carry out now: all, none before the next try, and then a single one."""
    if refusal is None:
        return wanted
    return wanted[:1] if refusal.is_due(now) else ()


def hold(refusal: Refusal) -> Hold:
    """Why fewer members are started than are missing, while creating them is refused."""
    return Hold(reason=refusal.condition_reason, message=refusal.text, until=refusal.retry_at)


def recorded(
    before: Sequence[Refusal],
    attempts: Iterable[Attempt],
    *,
    now: datetime,
    chance: random.Random,
) -> tuple[Refusal, ...]:
    """The refusals after these attempts; ``before`` has those of operations still wanted.

    A success ends the refusals of its operation. An operation that was not tried keeps them.
    """
    kept = {found.operation: found for found in before}
    refused: dict[str, Attempt] = {}
    for attempt in attempts:
        if attempt.refused:
            refused[attempt.operation] = attempt
        elif attempt.error is None:
            kept.pop(attempt.operation, None)
    for operation, attempt in refused.items():
        kept[operation] = _again(of(before, operation), attempt, now, chance)
    return tuple(kept[operation] for operation in sorted(kept))


def _again(
    before: Refusal | None, attempt: Attempt, now: datetime, chance: random.Random
) -> Refusal:
    error = attempt.error
    assert error is not None, "only a refused attempt is counted"
    count = before.count + 1 if before is not None else 1
    return Refusal(
        operation=attempt.operation,
        name=attempt.name,
        count=count,
        at=now,
        retry_at=now + BACKOFF.delay(count, chance),
        reason=error.reason,
        message=error.message,
    )


def on_record(writes: Iterable[RefusedWrite], *, generation: int) -> tuple[Refusal, ...]:
    """The refusals in the status of a pool; an edit of the pool clears them."""
    return tuple(
        Refusal(
            operation=found.operation,
            name=found.name,
            count=found.count,
            at=found.last_time,
            retry_at=found.retry_time,
            reason=found.reason,
            message=found.message,
        )
        for found in writes
        if found.generation == generation
    )


def refused_writes(refusals: Iterable[Refusal], *, generation: int) -> tuple[RefusedWrite, ...]:
    """The record of refusals in the status of a pool."""
    return tuple(
        RefusedWrite(
            operation=refusal.operation,
            name=refusal.name,
            count=refusal.count,
            last_time=refusal.at,
            retry_time=refusal.retry_at,
            generation=generation,
            reason=refusal.reason,
            message=refusal.message[:MESSAGE_MAX],
        )
        for refusal in refusals
    )
