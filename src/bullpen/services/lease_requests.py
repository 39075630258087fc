"""What a client requests, validated and made consistent. Pure: nothing is looked up here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from bullpen.api.kinds.lease import IDLE_TAG, TAGS_MAX, Lease, LeaseSpec, idle_problem
from bullpen.api.meta import LabelSelector, LabelSelectorRequirement
from bullpen.core.leases.lifecycle import TAG_PREFIX
from bullpen.errors import BadRequest
from bullpen.kit.durations import text
from bullpen.kit.names import label_key_problem, label_value_problem
from bullpen.kit.selectors import Operator, Selector

DURATION_MAX = AWAY_MAX = timedelta(days=3650)

_OPERATORS = {
    Operator.EQUALS: "In",
    Operator.IN: "In",
    Operator.NOT_IN: "NotIn",
    Operator.EXISTS: "Exists",
    Operator.DOES_NOT_EXIST: "DoesNotExist",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """A client's request for a lease, as received."""

    selector: str = ""
    exporter: str = ""
    duration: timedelta | None = None
    begin: datetime | None = None
    end: datetime | None = None
    tags: Mapping[str, str]
    lease_id: str = ""
    allow_disabled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """The changes a client requests; None leaves a field as it is."""

    duration: timedelta | None = None
    begin: datetime | None = None
    end: datetime | None = None
    client: str | None = None


def times(
    begin: datetime | None, end: datetime | None, duration: timedelta | None, *, now: datetime
) -> tuple[datetime | None, datetime | None, timedelta]:
    """Make begin, end and duration consistent; raises ``BadRequest`` if they contradict."""
    for moment in (begin, end):
        if moment is not None and abs(moment - now) > AWAY_MAX:
            raise BadRequest(f"a lease cannot begin or end more than {AWAY_MAX.days} days from now")
    if begin is not None and end is not None:
        if duration and duration != end - begin:
            raise BadRequest("begin, end and duration contradict each other; give two of them")
        duration = end - begin
    if not duration or duration <= timedelta(0):
        raise BadRequest("a lease needs a duration above zero, such as 30m")
    if duration > DURATION_MAX:
        raise BadRequest(f"a lease can last at most {DURATION_MAX.days} days")
    if begin is None and end is not None:
        begin = end - duration
    if begin is not None and begin + duration <= now:
        raise BadRequest(
            f"a lease from {begin:%Y-%m-%d %H:%M:%S} UTC for {text(duration)} is in the past"
        )
    return begin, end, duration


def retimed(lease: Lease, edit: Edit, *, now: datetime) -> LeaseSpec:
    """The spec with the times of ``edit``; raises ``BadRequest`` when they contradict each other.

    A lease that has its exporter has begun: an end or a duration counts from that begin.
    """
    spec = lease.spec
    if edit.begin is None and edit.end is None and edit.duration is None:
        return spec
    begun = lease.status.begin_time if edit.end is not None else None
    begin, end, duration = times(
        edit.begin or spec.begin_time or begun,
        # A new duration replaces an old end, and vice versa.
        edit.end or (None if edit.duration is not None else spec.end_time),
        edit.duration if edit.duration is not None or edit.end else spec.duration,
        now=now,
    )
    if lease.status.begin_time is not None:
        begin = spec.begin_time
    return replace(spec, begin_time=begin, end_time=end, duration=duration)


def label_selector(selector: Selector) -> LabelSelector:
    """A parsed selector in the form used in objects."""
    labels: dict[str, str] = {}
    expressions = []
    for item in selector.requirements:
        if item.operator is Operator.EQUALS:
            if labels.get(item.key, item.values[0]) != item.values[0]:
                raise BadRequest(f"the selector requires two values of {item.key!r} at once")
            labels[item.key] = item.values[0]
        elif item.operator in _OPERATORS:
            expressions.append(
                LabelSelectorRequirement(
                    key=item.key, operator=_OPERATORS[item.operator], values=item.values
                )
            )
        else:
            raise BadRequest(f"'{item.operator}' is not supported in a lease's selector")
    return LabelSelector(match_labels=labels, match_expressions=tuple(expressions))


def tag_labels(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags as the labels that leases are selected by; raises ``BadRequest`` for invalid tags."""
    if len(tags) > TAGS_MAX:
        raise BadRequest(f"a lease can have at most {TAGS_MAX} tags, not {len(tags)}")
    for key, value in tags.items():
        reserved = "/" in key or key.startswith(("jumpstarter.dev", "metadata.jumpstarter.dev"))
        problem = "must not contain '/' or use a reserved prefix" if reserved else None
        problem = problem or label_key_problem(key)
        if problem:
            raise BadRequest(f"tag {key!r} {problem}")
        if wrong := label_value_problem(value) or (key == IDLE_TAG and idle_problem(value)):
            raise BadRequest(f"the value {value!r} of tag {key!r} {wrong}")
    return {f"{TAG_PREFIX}{key}": value for key, value in tags.items()}
