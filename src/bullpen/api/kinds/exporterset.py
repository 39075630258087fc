"""ExporterSet: a pool of virtual targets that grows with demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar

from bullpen.api.admission_rules import (
    AdmissionRule,
    not_negative_rule,
    selector_rules,
    selects,
    template_rules,
)
from bullpen.api.columns import Column
from bullpen.api.exporter_template import Template
from bullpen.api.fields import Kind, Rule, Struct, about
from bullpen.api.kinds.virtualtargetclass import GROUP_VERSION, Images
from bullpen.api.meta import Condition, LabelSelector, ObjectMeta
from bullpen.api.metadata_checks import metadata_causes, selector_causes, selector_in
from bullpen.api.paths import Document, shown, walk
from bullpen.api.resource import Scale, resource
from bullpen.api.scale_down import REMOVALS, Removal, ScaleDownPolicy, explicit_rule
from bullpen.errors import Cause
from bullpen.kit import durations
from bullpen.kit.names import LABEL_VALUE_LENGTH_MAX, dns_subdomain_problem
from bullpen.kit.selectors import Selector

DECISIONS_MAX = 20

SET_NAME = "exporterset.jumpstarter.dev/name"
"""Label with the name of a member's set."""

SET_UID = "exporterset.jumpstarter.dev/uid"
"""Label with the uid of a member's set: unlike other labels, it selects no other exporters."""

SCALE_TO_ZERO = (
    "0 would remove the limit, because maxReplicas 0 means no limit; to stop the pool, set"
    " spec.paused to true in the ExporterSet; to remove the limit, set spec.maxReplicas to 0 in it"
)
"""Why the scale subresource refuses 0."""

MEMBER_ANNOTATIONS_BYTES_MAX = 1_024
"""What the controller adds to the annotations of a member, at most."""


class RecycleStrategy(StrEnum):
    EXIT_AND_REPLACE = "ExitAndReplace"
    IN_PLACE_REUSE = "InPlaceReuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSetSpec(Struct):
    """Size limits and content of the pool."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.maxReplicas) || self.maxReplicas == 0 || !has(self.minReplicas)"
            " || self.minReplicas <= self.maxReplicas",
            message="minReplicas must not be above maxReplicas, unless that is 0",
            field_path=".minReplicas",
        ),
        Rule(
            rule="!has(self.maxReplicas) || self.maxReplicas == 0"
            " || !has(self.minAvailableReplicas)"
            " || self.minAvailableReplicas <= self.maxReplicas",
            message="minAvailableReplicas must not be above maxReplicas, unless that is 0",
            field_path=".minAvailableReplicas",
        ),
        Rule(
            rule="self.selector == oldSelf.selector",
            message="selector cannot be changed; delete the set and create another one",
            field_path=".selector",
        ),
        explicit_rule("exporterset", "maxReplicas", unlimited=True),
    )

    min_replicas: int = field(
        default=0,
        metadata=about("Minimum number of instances.", format="int32", minimum=0, defaulted=True),
    )
    max_replicas: int = field(
        default=4,
        metadata=about(
            "Maximum number of instances; 0 means no limit.",
            format="int32",
            minimum=0,
            defaulted=True,
        ),
    )
    min_available_replicas: int = field(
        default=0,
        metadata=about(
            "How many to keep ready and unleased.", format="int32", minimum=0, defaulted=True
        ),
    )
    paused: bool = field(
        default=False,
        metadata=about(
            "Stop the pool: no member is started, and members without a lease are removed,"
            " unless scaleDownPolicy is Explicit."
        ),
    )
    scale_down_policy: ScaleDownPolicy = field(
        default=ScaleDownPolicy.NEWEST_FIRST,
        metadata=about(
            "Which members go first when the pool shrinks; Explicit: only those named in a"
            " removal.",
            defaulted=True,
        ),
    )
    scale_down_cooldown: timedelta = field(
        default=timedelta(minutes=5),
        metadata=about("How long a surplus must last before it is drained.", default="5m"),
    )
    recycle_strategy: RecycleStrategy = field(
        default=RecycleStrategy.EXIT_AND_REPLACE,
        metadata=about("What happens to an instance after its lease.", defaulted=True),
    )
    virtual_target_class_name: str = field(
        metadata=about("A VirtualTargetClass in the same namespace.", required=True, min_length=1)
    )
    parameters: Mapping[str, object] = field(
        default_factory=dict, metadata=about("Settings, merged deeply over those of the class.")
    )
    images: Images | None = field(
        default=None, metadata=about("Images to use instead of those of the class.")
    )
    selector: LabelSelector = field(
        metadata=about(
            "Labels that select the exporters of the set; cannot be changed.", required=True
        )
    )
    template: Template = field(metadata=about("What the set's exporters look like.", required=True))
    removals: tuple[Removal, ...] = field(default=(), metadata=REMOVALS)


def _count(description: str) -> dict[str, object]:
    return {**about(description, format="int32", required=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Struct):
    """An action on the pool, with its reason."""

    time: datetime = field(metadata=about("When it was done.", required=True))
    action: str = field(
        metadata=about("Create, Drain or Delete; Hold if nothing was started.", required=True)
    )
    name: str = field(
        metadata=about(
            "The member; the first and the last of many; empty for a Hold.", required=True
        )
    )
    count: int = field(
        default=1, metadata=about("Number of members concerned.", format="int32", minimum=1)
    )
    rule: str = field(metadata=about("The rule that fired, in CamelCase.", required=True))
    message: str = field(metadata=about("Numbers on which the decision was based.", required=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailures(Struct):
    """Members that failed to start, one after the other."""

    count: int = field(
        metadata=about("Number of consecutive failures.", format="int32", required=True)
    )
    last_time: datetime = field(metadata=about("When the last one failed.", required=True))
    retry_time: datetime = field(
        metadata=about("No member is started before this time.", required=True, micro=True)
    )
    revision: str = field(metadata=about("Revision of the members that failed.", required=True))
    reason: str = field(metadata=about("What went wrong last, in CamelCase.", required=True))
    message: str = field(default="", metadata=about("Human-readable message."))


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedWrite(Struct):
    """An operation on members that the API server refuses."""

    operation: str = field(metadata=about("Create, Drain, Delete or Relabel.", required=True))
    name: str = field(metadata=about("The member of the last attempt.", required=True))
    count: int = field(
        metadata=about("Number of consecutive refusals.", format="int32", required=True)
    )
    last_time: datetime = field(metadata=about("Time of the last refusal.", required=True))
    retry_time: datetime = field(
        metadata=about("It is not tried again before this time.", required=True, micro=True)
    )
    generation: int = field(
        metadata=about("Generation of the set; an edit of it is tried at once.", required=True)
    )
    reason: str = field(metadata=about("The API server's reason, in CamelCase.", required=True))
    message: str = field(default="", metadata=about("The API server's message."))


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityHold(Struct):
    """Why members wait for the backend."""

    reason: str = field(metadata=about("Why they wait, in CamelCase.", required=True))
    message: str = field(default="", metadata=about("Human-readable message."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Surplus(Struct):
    """Members that no lease needs and that will be drained."""

    since: datetime = field(metadata=about("Start of the current surplus.", required=True))
    count: int = field(
        metadata=about("Smallest surplus since then.", format="int32", required=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BootTimes(Struct):
    """How long recent members took to become ready."""

    recent: tuple[timedelta, ...] = field(
        default=(),
        metadata=about("The last boots, the oldest first.", list_type="atomic"),
    )
    slow: timedelta | None = field(
        default=None, metadata=about("Nine of ten recent boots took no longer.")
    )
    estimate_error: timedelta | None = field(
        default=None,
        metadata=about("Half of the recent boots differed from their estimate by less."),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSetStatus(Struct):
    """What is in the pool."""

    observed_generation: int = field(
        default=0, metadata=about("The metadata.generation these figures are for.")
    )
    replicas: int = field(default=0, metadata=_count("Exporters of the set."))
    ready_replicas: int = field(
        default=0, metadata=_count("Members that are registered and online.")
    )
    available_replicas: int = field(
        default=0, metadata=_count("Members that are ready, enabled and not leased.")
    )
    unavailable_replicas: int = field(
        default=0, metadata=_count("Members that are enabled and not ready.")
    )
    leased_replicas: int = field(default=0, metadata=_count("Members that are leased."))
    updated_replicas: int = field(
        default=0,
        metadata=about("Members of the current template and class.", format="int32"),
    )
    pods_pending: int = field(default=0, metadata=_count("Instances that are starting."))
    pods_running: int = field(default=0, metadata=_count("Instances that run."))
    pods_failed: int = field(default=0, metadata=_count("Instances that failed."))
    pods_unknown: int = field(default=0, metadata=_count("Instances in any other state."))
    exporters_active: int = field(default=0, metadata=_count("Exporters that serve a lease."))
    exporters_idle: int = field(default=0, metadata=_count("Exporters that could serve one."))
    exporters_disabled: int = field(default=0, metadata=_count("Exporters that are disabled."))
    exporters_offline: int = field(
        default=0, metadata=_count("Exporters that are enabled and not online.")
    )
    selector: str = field(
        default="",
        metadata=about("Selects the members of this set alone, for the scale subresource."),
    )
    conditions: tuple[Condition, ...] = field(
        default=(),
        metadata=about(
            "Latest observations: Available, Progressing, Synced, Degraded, ScalingLimited,"
            " SetHealthy.",
            list_keys=("type",),
        ),
    )
    created: int = field(
        default=0, metadata=about("How many members were ever created; names go on from here.")
    )
    revision: str = field(
        default="", metadata=about("The template and class that new members are made from.")
    )
    proven_revision: str = field(
        default="", metadata=about("Newest revision of which a member has started.")
    )
    typical_boot: timedelta | None = field(
        default=None,
        metadata=about("How long members take to become ready: half of the recent ones took less."),
    )
    boot_times: BootTimes | None = field(
        default=None, metadata=about("The boots from which waiting times are estimated.")
    )
    surplus: Surplus | None = field(
        default=None, metadata=about("Members that are drained if they stay unneeded.")
    )
    start_failures: StartFailures | None = field(
        default=None, metadata=about("Why members are not started freely, while that is so.")
    )
    capacity_hold: CapacityHold | None = field(
        default=None,
        metadata=about("Why members wait for capacity at the backend, while they do."),
    )
    refused_writes: tuple[RefusedWrite, ...] = field(
        default=(),
        metadata=about(
            "Operations on members that the API server refuses, while it does.",
            list_keys=("operation",),
        ),
    )
    decisions: tuple[Decision, ...] = field(
        default=(),
        metadata=about(
            f"The last {DECISIONS_MAX} things that were done to the pool, oldest first.",
            list_type="atomic",
            max_items=DECISIONS_MAX,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSet(Kind):
    """A pool of virtual targets that grows with demand and shrinks when idle."""

    api_version: ClassVar[str] = GROUP_VERSION
    kind: ClassVar[str] = "ExporterSet"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: ExporterSetSpec = field(
        metadata=about(
            "Size limits and content of the pool. Besides the rules below, the labels of"
            " the template must satisfy the selector; else the set would not know its exporters.",
            required=True,
        )
    )
    status: ExporterSetStatus = field(
        default=ExporterSetStatus(), metadata=about("What is in the pool.")
    )


def exporterset_causes(document: Document, old: Document | None) -> Iterator[Cause]:
    """Checks of a set beyond its schema."""
    yield from selector_causes(document, "spec", "selector")
    yield from template_causes(document)
    for path, value in walk(document, ("spec", "scaleDownCooldown")):
        if durations.parse(value) < timedelta(0):
            yield Cause(field=path, message=f"Invalid value: {shown(value)}: must not be negative")


def member_labels(name: str, template: Mapping[str, str]) -> dict[str, str]:
    """The labels of the members of the set ``name``, whatever their revision."""
    # A set's name may be too long for a label value; its members are then found by owner only.
    own = {SET_NAME: name} if 0 < len(name) <= LABEL_VALUE_LENGTH_MAX else {}
    return {**template, **own}


def template_causes(document: Document) -> Iterator[Cause]:
    """Why the API server would refuse a member of this set, or the set not know it.

    A rule that upstream lacks. It is not in the schema: over unbounded selectors a cluster would
    estimate its cost as too high and reject the whole definition.
    """
    metadata = document["spec"]["template"].get("metadata", {})
    labels = metadata.get("labels", {})
    annotations = metadata.get("annotations", {})
    room = {f"{SET_NAME}-room": "x" * MEMBER_ANNOTATIONS_BYTES_MAX}
    member = {"metadata": {"name": "x", "labels": labels, "annotations": {**annotations, **room}}}
    for cause in metadata_causes(member, dns_subdomain_problem):
        yield replace(cause, field=f"spec.template.{cause.field}")
    selector = selector_in(document["spec"]["selector"])
    if selector is None:
        return
    if not selector.matches(labels):
        yield _mismatch(selector, "must satisfy spec.selector")
    elif not selector.matches(member_labels(document.get("metadata", {}).get("name", ""), labels)):
        yield _mismatch(
            selector, f"must satisfy spec.selector with {SET_NAME}, which the controller sets"
        )


def _mismatch(selector: Selector, message: str) -> Cause:
    return Cause(
        field="spec.template.metadata.labels",
        message=f"Invalid value: {message}, which is {shown(str(selector))}",
    )


def _selector_rule() -> AdmissionRule:
    """``template_causes`` about the selector, for clusters."""
    labels = "object.spec.template.metadata.labels"
    given = f"has(object.spec.template.metadata) && has({labels})"
    named = f"size(object.metadata.name) <= {LABEL_VALUE_LENGTH_MAX}"
    plain = selects(
        "object.spec.selector",
        lambda key: f"({given} && {key} in {labels})",
        f"{labels}[{{}}]".format,
    )
    owned = selects(
        "object.spec.selector",
        lambda key: f"(({key} == '{SET_NAME}' && {named}) || ({given} && {key} in {labels}))",
        lambda key: f"({key} == '{SET_NAME}' && {named} ? object.metadata.name : {labels}[{key}])",
    )
    return AdmissionRule(
        expression=f"({plain}) && (!has(object.metadata.name) || ({owned}))",
        message="spec.template.metadata.labels: must satisfy spec.selector, also with"
        f" {SET_NAME}, which the controller sets",
    )


RESOURCES = (
    resource(
        ExporterSet,
        "exportersets",
        status=True,
        named_removal=True,
        scale=Scale(
            spec=("spec", "maxReplicas"),
            status=("status", "replicas"),
            selector=("status", "selector"),
            zero=SCALE_TO_ZERO,
        ),
        columns=(
            Column(name="Replicas", path=".status.replicas", type="integer"),
            Column(name="Ready", path=".status.readyReplicas", type="integer"),
            Column(name="Available", path=".status.availableReplicas", type="integer"),
            Column(name="Unavailable", path=".status.unavailableReplicas", type="integer"),
            Column(name="Leased", path=".status.leasedReplicas", type="integer"),
            Column(name="Class", path=".spec.virtualTargetClassName"),
        ),
        checks=(exporterset_causes,),
        admission=(
            *selector_rules("spec.selector"),
            *template_rules(MEMBER_ANNOTATIONS_BYTES_MAX + len(f"{SET_NAME}-room")),
            _selector_rule(),
            not_negative_rule("spec.scaleDownCooldown"),
        ),
    ),
)
