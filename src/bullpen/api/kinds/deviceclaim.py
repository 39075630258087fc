"""DeviceClaim: several targets at once, with alternatives and constraints; all of them or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar

from bullpen.api.admission_rules import (
    AdmissionRule,
    Clause,
    amount_rules,
    each,
    positive_rule,
)
from bullpen.api.claim_allocation import ClaimAllocation
from bullpen.api.columns import Column
from bullpen.api.fields import Kind, Limits, Rule, Struct, about
from bullpen.api.kinds.deviceclass import (
    GROUP_VERSION,
    SELECTORS_MAX,
    DeviceSelector,
    device_selector_causes,
    device_selector_rules,
)
from bullpen.api.kinds.devicepool import ATTRIBUTES_MAX, TAINTS_MAX, TaintEffect, amount_causes
from bullpen.api.kinds.lease import time_causes, time_rule
from bullpen.api.meta import Condition, LocalObjectReference, ObjectMeta
from bullpen.api.paths import Document, shown, walk
from bullpen.api.resource import resource
from bullpen.errors import Cause
from bullpen.kit import durations, quantities

REQUESTS_MAX = 32
ALTERNATIVES_MAX = 8
CONSTRAINTS_MAX = 32
PRIORITY_MAX = 1000
MEMBERS_MAX = 64
"""Devices of one claim."""

_QUANTITY = {"pattern": quantities.PATTERN}


def _name(description: str) -> dict[str, Limits]:
    pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
    return about(description, required=True, min_length=1, max_length=63, pattern=pattern)


class AllocationMode(StrEnum):
    EXACT_COUNT = "ExactCount"
    ALL = "All"


class MemberLoss(StrEnum):
    END = "End"
    REPLACE = "Replace"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceToleration(Struct):
    """Taints that a request accepts."""

    key: str = field(default="", metadata=about("Key of the taint; empty with Exists means all."))
    operator: str = field(
        default="Equal",
        metadata=about("Exists, or Equal, which is the default.", enum=["Exists", "Equal"]),
    )
    value: str = field(default="", metadata=about("Value of the taint, for Equal."))
    effect: TaintEffect | None = field(
        default=None, metadata=about("The effect that is tolerated; absent means all.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactRequest(Struct):
    """Devices of one description."""

    # No field of a list's items has a default in the schema: a merge patch replaces the list, so
    # kubectl apply would report a change each time.

    device_class_name: str = field(
        metadata=about("A DeviceClass.", required=True, min_length=1, max_length=253)
    )
    selectors: tuple[DeviceSelector, ...] = field(
        default=(),
        metadata=about(
            "Further conditions on each device; all must hold.",
            list_type="atomic",
            max_items=SELECTORS_MAX,
        ),
    )
    allocation_mode: AllocationMode = field(
        default=AllocationMode.EXACT_COUNT,
        metadata=about("ExactCount, which is the default, or All for every matching device."),
    )
    count: int = field(
        default=1,
        metadata=about(
            "How many devices, at least if totals are given; 1 by default.",
            minimum=1,
            maximum=MEMBERS_MAX,
        ),
    )
    capacity: Mapping[str, int | str] = field(
        default_factory=dict,
        metadata=about(
            "What each device must offer; of a shareable device only this share is taken.",
            items=_QUANTITY,
            max_properties=ATTRIBUTES_MAX,
        ),
    )
    totals: Mapping[str, int | str] = field(
        default_factory=dict,
        metadata=about(
            "What all devices together must offer; as few as possible are taken.",
            items=_QUANTITY,
            max_properties=ATTRIBUTES_MAX,
        ),
    )
    max_count: int | None = field(
        default=None,
        metadata=about(
            "How many devices may be taken to reach the totals.", minimum=1, maximum=MEMBERS_MAX
        ),
    )
    tolerations: tuple[DeviceToleration, ...] = field(
        default=(),
        metadata=about("Taints it accepts.", list_type="atomic", max_items=TAINTS_MAX),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativeRequest(ExactRequest):
    """One of several ways to satisfy a request, tried in order."""

    name: str = field(metadata=_name("Its name in the request."))
    after: timedelta = field(
        default=timedelta(0),
        metadata=about("Widen to this alternative only after the claim has waited so long."),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest(Struct):
    """A part of the claim."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.exactly) != has(self.firstAvailable)",
            message="give either exactly or firstAvailable",
        ),
    )

    name: str = field(metadata=_name("Its name in the claim."))
    exactly: ExactRequest | None = field(default=None, metadata=about("The devices it needs."))
    first_available: tuple[AlternativeRequest, ...] = field(
        default=(),
        metadata=about(
            "Alternatives; the first that leads to a complete claim is taken.",
            list_keys=("name",),
            max_items=ALTERNATIVES_MAX,
            min_items=1,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConstraint(Struct):
    """A condition across devices; a device without the attribute fails it."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.matchAttribute) != has(self.distinctAttribute)",
            message="give either matchAttribute or distinctAttribute",
        ),
    )

    match_attribute: str = field(
        default="", metadata=about("All devices have a value of it in common.", max_length=253)
    )
    distinct_attribute: str = field(
        default="", metadata=about("No two devices have a value of it in common.", max_length=253)
    )
    requests: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "The requests, or request/alternative, it covers; empty for all.",
            list_type="set",
            max_items=REQUESTS_MAX,
            items={"maxLength": 127},
        ),
    )
    prefer: bool = field(
        default=False, metadata=about("Kept if possible, after alternatives are chosen.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClaimSpec(Struct):
    """What is claimed, for how long, and how urgently."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.requests == oldSelf.requests",
            message="requests cannot be changed; release the claim and create another one",
            field_path=".requests",
        ),
    )

    client_ref: LocalObjectReference = field(metadata=about("The client that asks.", required=True))
    requests: tuple[DeviceRequest, ...] = field(
        metadata=about(
            "What is needed, all of it or none.",
            required=True,
            list_keys=("name",),
            max_items=REQUESTS_MAX,
            min_items=1,
        )
    )
    constraints: tuple[DeviceConstraint, ...] = field(
        default=(),
        metadata=about("Conditions across devices.", list_type="atomic", max_items=CONSTRAINTS_MAX),
    )
    duration: timedelta = field(metadata=about("How long it is needed.", required=True))
    begin_time: datetime | None = field(
        default=None, metadata=about("When it is needed; booked in advance. Absent for now.")
    )
    priority: int = field(
        default=0,
        metadata=about(
            "Claims of a higher one go first.", minimum=-PRIORITY_MAX, maximum=PRIORITY_MAX
        ),
    )
    preemptible: bool = field(
        default=False, metadata=about("May be ended for a claim of a higher priority.")
    )
    admin_access: bool = field(
        default=False,
        metadata=about(
            "May take devices that others have, whose leases end for it; needs a right of its own."
        ),
    )
    member_loss: MemberLoss = field(
        default=MemberLoss.END,
        metadata=about("What happens if one of its targets is lost.", defaulted=True),
    )
    release: bool = field(default=False, metadata=about("Asks to end the claim now."))

    @property
    def rank(self) -> int:
        """Its priority in the queue: admin access goes before everything else."""
        return PRIORITY_MAX + 1 if self.admin_access else self.priority


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimMember(Struct):
    """One device of the claim."""

    request: str = field(metadata=about("The request it serves.", required=True))
    alternative: str = field(default="", metadata=about("The alternative that was chosen."))
    device: str = field(metadata=about("The exporter, or pool/device.", required=True))
    lease_ref: LocalObjectReference | None = field(
        default=None, metadata=about("The lease of the exporter.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClaimStatus(Struct):
    """What the claim has got."""

    observed_generation: int = field(
        default=0, metadata=about("The metadata.generation that was observed.")
    )
    members: tuple[ClaimMember, ...] = field(
        default=(),
        metadata=about("Its devices.", list_type="atomic", max_items=MEMBERS_MAX),
    )
    allocation: ClaimAllocation | None = field(
        default=None,
        metadata=about("What the choice of its devices was based on; set when they are decided."),
    )
    ended: bool = field(default=False, metadata=about("Whether the claim is over."))
    end_time: datetime | None = field(default=None, metadata=about("When it ended."))
    conditions: tuple[Condition, ...] = field(
        default=(),
        metadata=about("Latest observations: Allocated, Ready.", list_keys=("type",)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClaim(Kind):
    """Several targets at once: all of them or none."""

    api_version: ClassVar[str] = GROUP_VERSION
    kind: ClassVar[str] = "DeviceClaim"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: DeviceClaimSpec = field(metadata=about("What is claimed.", required=True))
    status: DeviceClaimStatus = field(
        default=DeviceClaimStatus(), metadata=about("What the claim has got.")
    )


_FORMS = (
    ("spec", "requests", "*", "exactly"),
    ("spec", "requests", "*", "firstAvailable", "*"),
)


def deviceclaim_causes(document: Document, old: Document | None) -> Iterator[Cause]:
    """Checks of a claim beyond its schema."""
    for form in _FORMS:
        yield from device_selector_causes(document, *form, "selectors", "*")
        yield from amount_causes(document, *form, "capacity")
        yield from amount_causes(document, *form, "totals")
        for path, asked in walk(document, form):
            yield from _form_causes(path, asked)
    yield from _size_causes(document)
    yield from _name_causes(document)
    yield from _time_causes(document)
    yield from time_causes(document, old, "beginTime")


def _form_causes(path: str, asked: Mapping[str, Any]) -> Iterator[Cause]:
    every = asked.get("allocationMode") == AllocationMode.ALL
    if every and asked.get("count", 1) != 1:
        yield _wrong(f"{path}.count", asked["count"], "All takes no count")
    if every and asked.get("totals"):
        yield _wrong(f"{path}.totals", asked["totals"], "All takes no totals")
    most = asked.get("maxCount")
    if most is not None and not asked.get("totals"):
        yield _wrong(f"{path}.maxCount", most, "has a meaning only with totals")
    if most is not None and most < asked.get("count", 1):
        yield _wrong(f"{path}.maxCount", most, "must not be below count")


def _size_causes(document: Document) -> Iterator[Cause]:
    """A claim has at most ``MEMBERS_MAX`` devices, whatever alternatives are chosen."""
    total = 0
    for request in document["spec"]["requests"]:
        forms = [request["exactly"]] if "exactly" in request else request.get("firstAvailable", ())
        counts = (max(form.get("count", 1), form.get("maxCount", 1)) for form in forms)
        total += max(counts, default=0)
    if total > MEMBERS_MAX:
        message = f"must not ask for more than {MEMBERS_MAX} devices"
        yield _wrong("spec.requests", total, message)


def _name_causes(document: Document) -> Iterator[Cause]:
    known: set[str] = set()
    for request in document["spec"]["requests"]:
        known.add(request["name"])
        known |= {f"{request['name']}/{a['name']}" for a in request.get("firstAvailable", ())}
    for path, name in walk(document, ("spec", "constraints", "*", "requests", "*")):
        if name not in known:
            yield Cause(
                field=path,
                message=f"Not found: {shown(name)}: no request and no alternative has this name",
                reason="FieldValueNotFound",
            )


def _time_causes(document: Document) -> Iterator[Cause]:
    if durations.parse(document["spec"]["duration"]) <= timedelta(0):
        yield _wrong("spec.duration", document["spec"]["duration"], "must be positive")
    for path, listed in walk(document, ("spec", "requests", "*", "firstAvailable")):
        before = timedelta(0)
        for number, form in enumerate(listed):
            after = durations.parse(form["after"]) if "after" in form else timedelta(0)
            if after < before:
                yield _wrong(
                    f"{path}[{number}].after",
                    form.get("after", "0s"),
                    "must not be shorter than that of an earlier alternative",
                )
            before = max(before, after)


def _wrong(path: str, value: object, problem: str) -> Cause:
    return Cause(field=path, message=f"Invalid value: {shown(value)}: {problem}")


def _form_rules(path: str) -> Iterator[AdmissionRule]:
    """``_form_causes`` of each form at ``path``, for clusters."""
    yield from device_selector_rules(f"{path}.selectors")
    yield from amount_rules(f"{path}.capacity", f"{path}.totals")

    def rule(name: str, condition: Clause, problem: str) -> AdmissionRule:
        return AdmissionRule(expression=each(path, condition), message=f"{path}.{name}: {problem}")

    def every(form: str) -> str:
        return f"has({form}.allocationMode) && {form}.allocationMode == '{AllocationMode.ALL}'"

    def totals(form: str) -> str:
        return f"has({form}.totals) && size({form}.totals) > 0"

    yield rule(
        "count",
        lambda form: f"!({every(form)}) || !has({form}.count) || {form}.count == 1",
        "All takes no count",
    )
    yield rule(
        "totals", lambda form: f"!({every(form)}) || !({totals(form)})", "All takes no totals"
    )
    yield rule(
        "maxCount",
        lambda form: f"!has({form}.maxCount) || ({totals(form)})",
        "has a meaning only with totals",
    )
    yield rule(
        "maxCount",
        lambda form: (
            f"!has({form}.maxCount) || {form}.maxCount >= (has({form}.count) ? {form}.count : 1)"
        ),
        "must not be below count",
    )


def _claim_rules() -> Iterator[AdmissionRule]:
    """The checks above, for clusters."""
    yield from _form_rules("spec.requests.*.exactly")
    yield from _form_rules("spec.requests.*.firstAvailable.*")
    count = "[has(f.count) ? f.count : 1, has(f.maxCount) ? f.maxCount : 1].max()"
    forms = "(has(r.exactly) ? [r.exactly] : has(r.firstAvailable) ? r.firstAvailable : [])"
    largest = f"(size({forms}) > 0 ? {forms}.map(f, {count}).max() : 0)"
    yield AdmissionRule(
        expression=f"object.spec.requests.map(r, {largest}).sum() <= {MEMBERS_MAX}",
        message=f"spec.requests: must not ask for more than {MEMBERS_MAX} devices",
    )
    yield AdmissionRule(
        expression=each(
            "spec.constraints.*.requests.*",
            lambda name: (
                f"object.spec.requests.exists(r, {name} == r.name || (has(r.firstAvailable)"
                f" && r.firstAvailable.exists(a, {name} == r.name + '/' + a.name)))"
            ),
        ),
        message="spec.constraints.*.requests: must name requests or alternatives",
    )
    yield positive_rule("spec.duration")
    yield time_rule("beginTime")
    after = "(has({0}.after) ? duration({0}.after) : duration('0s'))".format
    yield AdmissionRule(
        expression=each(
            "spec.requests.*.firstAvailable",
            lambda forms: (
                f"{forms}.all(a, {after('a')} > duration('-1us'))"
                f" && {forms}.map(a, {after('a')}).isSorted()"
            ),
        ),
        message="spec.requests.*.firstAvailable.*.after: must not be shorter than that of an"
        " earlier alternative",
    )


RESOURCES = (
    resource(
        DeviceClaim,
        "deviceclaims",
        status=True,
        columns=(
            Column(name="Client", path=".spec.clientRef.name"),
            Column(name="Allocated", path='.status.conditions[?(@.type=="Allocated")].status'),
            Column(name="Reason", path='.status.conditions[?(@.type=="Allocated")].reason'),
            Column(name="Duration", path=".spec.duration"),
        ),
        checks=(deviceclaim_causes,),
        admission=tuple(_claim_rules()),
    ),
)
