"""Lease: exclusive use of one exporter by one client for a limited time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from bullpen.api.admission_rules import (
    AdmissionRule,
    each,
    lasts,
    positive_rule,
    selector_rules,
)
from bullpen.api.columns import Column
from bullpen.api.fields import Kind, Rule, Struct, about
from bullpen.api.kinds.client import GROUP_VERSION
from bullpen.api.meta import Condition, LabelSelector, LocalObjectReference, ObjectMeta
from bullpen.api.metadata_checks import selector_causes
from bullpen.api.paths import Document, shown, walk
from bullpen.api.resource import resource
from bullpen.errors import Cause
from bullpen.kit import durations, times

TAGS_MAX = 10
CONTEXT_MAX = 8
SESSIONS_MAX = 10

IDLE_TAG = "idle-timeout"
"""The tag with which a client asks for an idle time-out of its lease."""

IDLE_MIN = timedelta(seconds=10)
"""The shortest idle time-out: a client needs seconds to connect after it got its lease."""

TIME_MIN = datetime(1970, 1, 1, tzinfo=UTC)
TIME_MAX = datetime(2970, 1, 1, tzinfo=UTC)
"""Upper bound of begin and end times.

The longest duration is 292 years, so that sums stay far below the year 9999, the limit of
time arithmetic.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSpec(Struct):
    """What the client asks for."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="(has(self.selector.matchLabels) && size(self.selector.matchLabels) > 0)"
            " || (has(self.selector.matchExpressions) && size(self.selector.matchExpressions) > 0)"
            " || (has(self.exporterRef) && has(self.exporterRef.name)"
            " && size(self.exporterRef.name) > 0)",
            message="one of selector or exporterRef.name is required",
        ),
        Rule(
            rule="has(self.clientRef.name) && size(self.clientRef.name) > 0",
            message="a lease needs the name of its client",
            field_path=".clientRef.name",
            reason="FieldValueRequired",
        ),
        Rule(
            rule="!has(oldSelf.tags) || (has(self.tags) && self.tags == oldSelf.tags)",
            message="tags are immutable once set",
            field_path=".tags",
        ),
        Rule(
            rule="!has(oldSelf.context) || (has(self.context) && self.context == oldSelf.context)",
            message="context is immutable once set",
            field_path=".context",
        ),
        Rule(
            rule="!has(self.context)"
            " || self.context.all(k, size(k) <= 32 && size(self.context[k]) <= 64)",
            message="context keys have at most 32 characters, values at most 64",
            field_path=".context",
        ),
    )

    client_ref: LocalObjectReference = field(metadata=about("The client that asks.", required=True))
    selector: LabelSelector = field(
        default=LabelSelector(),
        metadata=about("Labels the exporter must have.", required=True, defaulted=True),
    )
    exporter_ref: LocalObjectReference | None = field(
        default=None, metadata=about("The one exporter the client wants.")
    )
    allow_disabled: bool = field(
        default=False,
        metadata=about("Take the exporter of exporterRef even while it is disabled."),
    )
    duration: timedelta | None = field(
        default=None,
        metadata=about("Duration; optional if both times are given."),
    )
    begin_time: datetime | None = field(
        default=None, metadata=about("Earliest start; as soon as possible if absent.")
    )
    end_time: datetime | None = field(
        default=None, metadata=about("Latest end; takes precedence over the duration.")
    )
    release: bool = field(default=False, metadata=about("Asks to end the lease now."))
    tags: Mapping[str, str] = field(
        default_factory=dict,
        metadata=about("The user's own keys and values; immutable.", max_properties=TAGS_MAX),
    )
    context: Mapping[str, str] = field(
        default_factory=dict,
        metadata=about(
            "What the lease is for, such as a build; immutable.",
            max_properties=CONTEXT_MAX,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSession(Struct):
    """One connection of a client to the exporter."""

    stream: str = field(metadata=about("Identity of the connection.", required=True))
    client: str = field(metadata=about("Name of the client that connected.", required=True))
    start_time: datetime = field(metadata=about("When the two sides met.", required=True))
    end_time: datetime | None = field(
        default=None, metadata=about("When the connection ended; absent while it lasts.")
    )
    bytes_from_client: int = field(
        default=0, metadata=about("Bytes the client sent, known at the end.", minimum=0)
    )
    bytes_from_exporter: int = field(
        default=0, metadata=about("Bytes the exporter sent, known at the end.", minimum=0)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStatus(Struct):
    """What the client got."""

    begin_time: datetime | None = field(
        default=None, metadata=about("When an exporter was assigned.")
    )
    end_time: datetime | None = field(default=None, metadata=about("When the lease ended."))
    exporter_ref: LocalObjectReference | None = field(
        default=None, metadata=about("The assigned exporter; stays after the end.")
    )
    client_ref: LocalObjectReference | None = field(
        default=None,
        metadata=about("The client that has the exporter; follows spec.clientRef."),
    )
    ended: bool = field(
        default=False, metadata=about("Whether the lease is over.", required=True, defaulted=True)
    )
    epoch: int = field(
        default=0,
        metadata=about("The exporter's leaseEpoch when it was assigned or handed over.", minimum=0),
    )
    priority: int = field(default=0, metadata=about("Priority from the access policy."))
    spot_access: bool = field(
        default=False, metadata=about("Whether a more important lease may take the exporter.")
    )
    maximum_duration: timedelta | None = field(
        default=None,
        metadata=about(
            "The longest it may last from its begin, by the access policy it was given under."
        ),
    )
    idle_timeout: timedelta | None = field(
        default=None,
        metadata=about("How long it may be without a connection before it ends; absent for ever."),
    )
    conditions: tuple[Condition, ...] = field(
        default=(),
        metadata=about(
            "Latest observations: Pending, Limited, Interrupted, Ready, Unsatisfiable, Invalid.",
            list_keys=("type",),
            defaulted=True,
        ),
    )
    sessions: tuple[LeaseSession, ...] = field(
        default=(),
        metadata=about(
            f"The last {SESSIONS_MAX} connections through the lease, oldest first.",
            list_type="atomic",
            max_items=SESSIONS_MAX,
        ),
    )


ENDED_LABEL = "jumpstarter.dev/lease-ended"
"""The label of ended leases. It is written after the status that says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease(Kind):
    """Exclusive use of one exporter by one client for a limited time."""

    api_version: ClassVar[str] = GROUP_VERSION
    kind: ClassVar[str] = "Lease"
    selected: ClassVar[str] = f"!{ENDED_LABEL}"
    # There are a thousand times as many ended leases as open ones, and no decision needs them.

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: LeaseSpec = field(metadata=about("What the client asks for.", required=True))
    status: LeaseStatus = field(
        default=LeaseStatus(),
        # `jmp admin get leases` fails as a whole if one lease lacks these two fields.
        metadata=about("What the client got.", defaulted=True),
    )


def lease_causes(document: Document, old: Document | None) -> Iterator[Cause]:
    """Checks of a lease beyond its schema."""
    yield from selector_causes(document, "spec", "selector")
    for path, value in walk(document, ("spec", "duration")):
        if durations.parse(value) <= timedelta(0):
            yield Cause(field=path, message=f"Invalid value: {shown(value)}: must be positive")
    if old is None:
        for path, value in walk(document, ("spec", "tags", IDLE_TAG)):
            if problem := idle_problem(value):
                yield Cause(field=path, message=f"Invalid value: {shown(value)}: {problem}")
    yield from time_causes(document, old, "beginTime", "endTime")


def time_causes(document: Document, old: Document | None, *names: str) -> Iterator[Cause]:
    """The errors in the times with these names in the spec."""
    for name in names:
        before = [value for _, value in walk(old, ("spec", name))] if old is not None else []
        for path, value in walk(document, ("spec", name)):
            # A time stored before this bound existed must not prevent the lease from ending.
            if not TIME_MIN <= times.parse(value) <= TIME_MAX and value not in before:
                text = f"must lie between {times.text(TIME_MIN)} and {times.text(TIME_MAX)}"
                yield Cause(field=path, message=f"Invalid value: {shown(value)}: {text}")


def time_rule(name: str) -> AdmissionRule:
    """``time_causes`` of one time, for clusters."""
    first, last = times.text(TIME_MIN), times.text(TIME_MAX)

    def holds(time: str) -> str:
        earliest, latest = f"timestamp('{first}')", f"timestamp('{last}')"
        inside = f"timestamp({time}) >= {earliest} && timestamp({time}) <= {latest}"
        same = f"oldObject != null && has(oldObject.spec.{name}) && oldObject.spec.{name} == {time}"
        return f"({same}) || ({inside})"

    return AdmissionRule(
        expression=each(f"spec.{name}", holds),
        message=f"spec.{name}: must lie between {first} and {last}",
    )


def idle_problem(text: str) -> str:
    """What is wrong with an idle time-out; empty if it is a valid one."""
    try:
        found = durations.parse(text)
    except ValueError as error:
        return str(error)
    return "" if found >= IDLE_MIN else f"must be at least {durations.text(IDLE_MIN)}"


def idle_rule(path: str) -> AdmissionRule:
    """``idle_problem`` of what is at ``path``, for clusters."""
    shortest = durations.text(IDLE_MIN)
    return AdmissionRule(
        expression=each(path, lambda text: lasts(text, f">= duration('{shortest}')")),
        message=f"{path}: must be a duration of at least {shortest}",
    )


def _tag_rule() -> AdmissionRule:
    shortest = durations.text(IDLE_MIN)
    tag = f"object.spec.tags['{IDLE_TAG}']"
    given = f"oldObject == null && has(object.spec.tags) && '{IDLE_TAG}' in object.spec.tags"
    bound = f">= duration('{shortest}')"
    return AdmissionRule(
        expression=f"!({given}) || ({lasts(tag, bound)})",
        message=f"spec.tags.{IDLE_TAG}: must be a duration of at least {shortest}",
    )


RESOURCES = (
    resource(
        Lease,
        "leases",
        status=True,
        columns=(
            Column(name="Ended", path=".status.ended", type="boolean"),
            Column(name="Client", path=".spec.clientRef.name"),
            Column(name="Exporter", path=".status.exporterRef.name"),
        ),
        checks=(lease_causes,),
        admission=(
            *selector_rules("spec.selector"),
            positive_rule("spec.duration"),
            _tag_rule(),
            time_rule("beginTime"),
            time_rule("endTime"),
        ),
    ),
)
