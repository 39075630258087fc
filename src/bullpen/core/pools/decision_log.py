"""What was done to a pool, and by which rule: as events, and the latest in its status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from bullpen.api.kinds.exporterset import DECISIONS_MAX, Decision
from bullpen.core.pools.refusals import Refusal
from bullpen.core.pools.scale_plan import Action, Create, Drain, Plan, Rule

HOLD = "Hold"
"""The action of a decision to start nothing for now."""

MESSAGE_MAX = 300
"""Characters of one entry; a backend's error can be a page long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One event."""

    reason: str
    message: str
    warning: bool = False


class Done(Protocol):
    """Something that was done to a member of a pool."""

    @property
    def name(self) -> str: ...

    @property
    def rule(self) -> StrEnum: ...

    @property
    def message(self) -> str: ...


def decisions(done: Sequence[Done], *, now: datetime) -> tuple[Decision, ...]:
    """The actions of one pass; the same action on many members is one entry."""
    groups: dict[tuple[str, StrEnum], list[Done]] = {}
    for action in done:
        groups.setdefault((type(action).__name__, action.rule), []).append(action)
    return tuple(
        Decision(
            time=now,
            action=verb,
            name=_names(group),
            count=len(group),
            rule=rule.value,
            message=_message(group),
        )
        for (verb, rule), group in groups.items()
    )


def held(plan: Plan, *, now: datetime) -> Decision | None:
    """The decision not to start the missing members, if that is the plan."""
    hold = plan.hold
    if hold is None:
        return None
    return Decision(
        time=now,
        action=HOLD,
        name="",
        count=max(1, plan.missing),
        rule=hold.reason,
        message=f"{plan.numbers}; {hold.message}"[:MESSAGE_MAX],
    )


def recorded(
    ledger: tuple[Decision, ...],
    done: Sequence[Done],
    *,
    held: Decision | None = None,
    now: datetime,
) -> tuple[Decision, ...]:
    """``ledger`` with the current decisions appended; the oldest entries are dropped.

    A hold is recorded once, as long as nothing else is done meanwhile.
    """
    found = (*ledger, *decisions(done, now=now))
    last = found[-1] if found else None
    if held is not None and (last is None or (last.action, last.rule) != (HOLD, held.rule)):
        found = (*found, held)
    return found[-DECISIONS_MAX:]


def notes(done: Sequence[Action], *, now: datetime) -> tuple[Note, ...]:
    """The events for the actions."""
    return tuple(_note(decision) for decision in decisions(done, now=now))


def refused(refusals: Sequence[Refusal], *, now: datetime) -> tuple[Note, ...]:
    """The events for the refusals of this moment."""
    return tuple(
        Note(
            reason=found.event_reason,
            message=f"exporter {found.name}: {found.reason}: {found.message[:MESSAGE_MAX]}",
            warning=True,
        )
        for found in refusals
        if found.at == now
    )


def _note(decision: Decision) -> Note:
    verb = _VERBS[decision.action]
    which = decision.name if decision.count == 1 else f"{decision.count} ({decision.name})"
    reason = _REASONS.get(decision.rule) or _DIRECTIONS[decision.action]
    return Note(
        reason=reason,
        message=f"{verb} {which} by rule {decision.rule}: {decision.message}",
        warning=decision.rule in (Rule.CRASHED, Rule.FAILED_TO_START),
    )


_VERBS = {"Create": "created", "Drain": "drained", "Delete": "deleted"}
_DIRECTIONS = {Create.__name__: "ScaleUp", Drain.__name__: "ScaleDown", "Delete": "ScaleDown"}
_REASONS: dict[str, str] = {
    Rule.ROLLOUT: "Rollout",
    Rule.SPENT: "Recycle",
    Rule.CRASHED: "MemberCrashed",
    Rule.LOST: "MemberLost",
    Rule.FAILED_TO_START: "MemberFailed",
}


def _names(group: Sequence[Done]) -> str:
    first, last = group[0].name, group[-1].name
    return first if len(group) == 1 else f"{first} to {last}"


def _message(group: Sequence[Done]) -> str:
    said = list(dict.fromkeys(action.message for action in group))
    more = f" (and {len(said) - 1} other reasons)" if len(said) > 1 else ""
    return f"{said[0][:MESSAGE_MAX]}{more}"
