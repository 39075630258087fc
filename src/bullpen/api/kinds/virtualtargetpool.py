"""VirtualTargetPool: exactly N identical VirtualTargets, with disks that can outlive them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar

from bullpen.api.admission_rules import (
    AdmissionRule,
    each,
    label_name_rule,
    not_negative_rule,
    template_rules,
)
from bullpen.api.columns import Column
from bullpen.api.fields import Kind, Rule, Struct, about
from bullpen.api.kinds.exporterset import DECISIONS_MAX, Decision, RefusedWrite
from bullpen.api.kinds.virtualdisk import VirtualDiskSpec, size_causes, size_rule
from bullpen.api.kinds.virtualtarget import (
    DISKS_MAX,
    RESERVED_PREFIX,
    VirtualTargetSpec,
    target_spec_causes,
    target_spec_rule,
)
from bullpen.api.kinds.virtualtargetclass import GROUP_VERSION
from bullpen.api.meta import Condition, ObjectMeta
from bullpen.api.metadata_checks import metadata_causes
from bullpen.api.paths import Document, shown, walk
from bullpen.api.resource import Scale, resource
from bullpen.api.scale_down import REMOVALS, Removal, ScaleDownPolicy, explicit_rule
from bullpen.errors import Cause
from bullpen.kit import durations
from bullpen.kit.names import dns_label_problem, dns_subdomain_problem

POOL_UID = f"{RESERVED_PREFIX}pool-uid"
"""Label with the uid of a member's or disk's pool."""

POOL_NAME = f"{RESERVED_PREFIX}pool"
"""Label with the name of a member's or disk's pool."""

TEMPLATE_HASH = f"{RESERVED_PREFIX}template-hash"
"""Label with the digest of the template that is written to a member."""

DISK_TEMPLATE = f"{RESERVED_PREFIX}disk-template"
"""Label of a disk with the name of its template."""

FREE_SINCE = f"{RESERVED_PREFIX}free-since"
"""Annotation of a retained disk: since when no member has it (RFC 3339)."""

REPLICAS_MAX = 10_000
"""Members of one pool; a larger number is more likely a typing error than what is wanted."""

REVISIONS_MAX = 10
NUMBER_LENGTH_MAX = 10
"""Digits of the number at the end of a member's or retained disk's name."""

POOL_NAME_LENGTH_MAX = 63 - 1 - NUMBER_LENGTH_MAX
"""So that the names of members are DNS labels."""

MEMBER_ANNOTATIONS_BYTES_MAX = 1_024
"""What the controller adds to the annotations of a member, at most."""


class OnScaleDown(StrEnum):
    DELETE = "Delete"
    RETAIN = "Retain"


class UpdateType(StrEnum):
    IN_PLACE = "InPlace"
    REPLACE = "Replace"
    ON_DELETE = "OnDelete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim(Struct):
    """What becomes of a disk whose member is removed."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.onScaleDown == 'Retain' || self.keep == 0",
            message="keep needs onScaleDown: Retain",
            field_path=".keep",
        ),
        Rule(
            rule="self.onScaleDown == 'Retain' || !has(self.ttl)",
            message="ttl needs onScaleDown: Retain",
            field_path=".ttl",
        ),
        Rule(
            rule="self.keep == 0 || has(self.ttl)",
            message="keep needs a ttl: without one no free disk is ever deleted",
            field_path=".keep",
        ),
    )

    on_scale_down: OnScaleDown = field(
        default=OnScaleDown.DELETE,
        metadata=about("Delete it with its member, or keep it for another one.", defaulted=True),
    )
    keep: int = field(
        default=0,
        metadata=about(
            "Number of free disks, the most recently freed ones, that ttl does not concern.",
            format="int32",
            minimum=0,
            defaulted=True,
        ),
    )
    ttl: timedelta | None = field(
        default=None, metadata=about("How long a free disk is kept; for ever if absent.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskTemplate(Struct):
    """A disk that every member has for itself."""

    name: str = field(
        metadata=about(
            "Name; the disk of the template with this name is the placeholder.",
            required=True,
            pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
            max_length=63,
        )
    )
    reclaim: Reclaim = field(
        default=Reclaim(),
        metadata=about(
            "What becomes of the disk when its member is removed.",
            default={"onScaleDown": "Delete", "keep": 0},
        ),
    )
    spec: VirtualDiskSpec = field(metadata=about("Size and first content.", required=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadata(Struct):
    """Metadata of the members."""

    labels: Mapping[str, str] = field(
        default_factory=dict, metadata=about("Labels; leases select the members by them.")
    )
    annotations: Mapping[str, str] = field(default_factory=dict, metadata=about("Annotations."))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTemplate(Struct):
    """What the members look like."""

    metadata: MemberMetadata = field(
        default=MemberMetadata(), metadata=about("Metadata of the members.")
    )
    spec: VirtualTargetSpec = field(metadata=about("Spec of the members.", required=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStrategy(Struct):
    """How a change of the template reaches the members."""

    type: UpdateType = field(
        default=UpdateType.IN_PLACE,
        metadata=about(
            "Write it to the members, replace them, or use it for new members only.",
            defaulted=True,
        ),
    )
    max_unavailable: int | str = field(
        default=1,
        metadata=about(
            "Members that an update may make unavailable at once: a number or a percentage.",
            pattern=r"^([1-9][0-9]{0,4}|[1-9][0-9]?%|100%)$",
            default=1,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualTargetPoolSpec(Struct):
    """Number and content of the members."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.virtualDiskTemplates) || self.virtualDiskTemplates.all(t,"
            " has(self.template.spec.disks) && self.template.spec.disks.exists_one(d,"
            " has(d.virtualDisk) && d.virtualDisk == t.name))",
            message="exactly one disk of template.spec.disks must name each disk template",
            field_path=".virtualDiskTemplates",
        ),
        Rule(
            rule="!has(self.template.spec.disks) || self.template.spec.disks.all(d,"
            " !has(d.virtualDisk) || (has(self.virtualDiskTemplates)"
            " && self.virtualDiskTemplates.exists(t, t.name == d.virtualDisk)))",
            message="a virtualDisk of template.spec.disks must name a disk template: members"
            " cannot share a disk",
            field_path=".template.spec.disks",
        ),
        explicit_rule("virtualtargetpool", "replicas"),
    )

    replicas: int = field(
        default=1,
        metadata=about(
            "Number of members.",
            format="int32",
            minimum=0,
            maximum=REPLICAS_MAX,
            defaulted=True,
        ),
    )
    scale_down_policy: ScaleDownPolicy = field(
        metadata=about(
            "Which members go first when the count falls; Explicit: only those named in a removal.",
            required=True,
        )
    )
    paused: bool = field(
        default=False,
        metadata=about("Change nothing: no member is created, removed or updated."),
    )
    update_strategy: UpdateStrategy = field(
        default=UpdateStrategy(),
        metadata=about(
            "How a change of the template reaches the members.",
            default={"type": "InPlace", "maxUnavailable": 1},
        ),
    )
    template: MemberTemplate = field(metadata=about("What the members look like.", required=True))
    virtual_disk_templates: tuple[DiskTemplate, ...] = field(
        default=(),
        metadata=about(
            "Disks that every member has for itself.", list_keys=("name",), max_items=DISKS_MAX
        ),
    )
    removals: tuple[Removal, ...] = field(default=(), metadata=REMOVALS)


def _count(description: str) -> dict[str, object]:
    return {**about(description, format="int32", required=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateRevision(Struct):
    """A template that the pool has had."""

    hash: str = field(metadata=about("Digest of the template.", required=True))
    time: datetime = field(metadata=about("When it was first seen.", required=True))
    template: Mapping[str, object] = field(
        default_factory=dict, metadata=about("The template, to go back to it.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualTargetPoolStatus(Struct):
    """What is in the pool."""

    observed_generation: int = field(
        default=0, metadata=about("The metadata.generation these figures are for.")
    )
    replicas: int = field(default=0, metadata=_count("Members, leaving ones included."))
    ready_replicas: int = field(default=0, metadata=_count("Members that are ready."))
    available_replicas: int = field(
        default=0, metadata=_count("Members that are ready and not leased.")
    )
    leased_replicas: int = field(default=0, metadata=_count("Members that are leased."))
    updated_replicas: int = field(
        default=0, metadata=_count("Members on which the current template is in effect.")
    )
    restart_pending_replicas: int = field(
        default=0,
        metadata=_count("Members to which the template is written, and that await a restart."),
    )
    desired_template_hash: str = field(
        default="", metadata=about("Digest of the current template.")
    )
    selector: str = field(
        default="", metadata=about("Selects the members of this pool alone, for autoscalers.")
    )
    created: int = field(
        default=0, metadata=about("How many members were ever created; names go on from here.")
    )
    created_disks: int = field(
        default=0, metadata=about("How many retained disks were ever created.")
    )
    revisions: tuple[TemplateRevision, ...] = field(
        default=(),
        metadata=about(
            f"The last {REVISIONS_MAX} templates, oldest first.",
            list_type="atomic",
            max_items=REVISIONS_MAX,
        ),
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
    conditions: tuple[Condition, ...] = field(
        default=(),
        metadata=about(
            "Latest observations: Available, Progressing, Synced, ReplicaFailure, Paused.",
            list_keys=("type",),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualTargetPool(Kind):
    """Exactly N identical VirtualTargets."""

    api_version: ClassVar[str] = GROUP_VERSION
    kind: ClassVar[str] = "VirtualTargetPool"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: VirtualTargetPoolSpec = field(
        metadata=about("Number and content of the members.", required=True)
    )
    status: VirtualTargetPoolStatus = field(
        default=VirtualTargetPoolStatus(), metadata=about("What is in the pool.")
    )


def pool_name_problem(name: str) -> str | None:
    """Why a pool cannot have this name: those of its members must be DNS labels."""
    if len(name) > POOL_NAME_LENGTH_MAX:
        why = f"names of members add up to {NUMBER_LENGTH_MAX + 1} characters"
        return f"must be no more than {POOL_NAME_LENGTH_MAX} characters, because {why}"
    return dns_label_problem(name)


def member_name(pool: str, number: int) -> str:
    return f"{pool}-{number}"


def own_disk_name(member: str, template: str) -> str:
    """The name of a disk that is deleted with its member."""
    return f"{member}-{template}"


def retained_disk_name(pool: str, template: str, number: int) -> str:
    return f"{pool}-{template}-{number}"


def virtualtargetpool_causes(document: Document, old: Document | None) -> Iterator[Cause]:
    """Checks of a pool beyond its schema, with a member and its disks at their longest names."""
    spec = document["spec"]
    template = spec["template"]
    yield from target_spec_causes(template["spec"], "spec.template.spec")
    yield from _metadata_causes(document, template.get("metadata") or {})
    if spec.get("updateStrategy", {}).get("maxUnavailable", 1) == 0:
        message = "Invalid value: 0: must be at least 1, or no update could proceed"
        yield Cause(field="spec.updateStrategy.maxUnavailable", message=message)
    for index, disk in enumerate(spec.get("virtualDiskTemplates", ())):
        yield from _disk_causes(document, disk, f"spec.virtualDiskTemplates[{index}]")
    for path, value in walk(document, ("spec", "virtualDiskTemplates", "*", "reclaim", "ttl")):
        if durations.parse(value) < timedelta(0):
            yield Cause(field=path, message=f"Invalid value: {shown(value)}: must not be negative")


def _metadata_causes(
    document: Document, metadata: Mapping[str, Mapping[str, str]]
) -> Iterator[Cause]:
    """Why the API server would refuse the metadata of a member."""
    labels, annotations = metadata.get("labels", {}), metadata.get("annotations", {})
    room = {f"{RESERVED_PREFIX}room": "x" * MEMBER_ANNOTATIONS_BYTES_MAX}
    member = {
        "metadata": {
            "name": member_name(_name(document), 10**NUMBER_LENGTH_MAX - 1),
            "labels": {**labels, POOL_NAME: _name(document)},
            "annotations": {**annotations, **room},
        }
    }
    for cause in metadata_causes(member, dns_label_problem):
        if cause.field != "metadata.name":
            yield replace(cause, field=f"spec.template.{cause.field}")
    for part, found in (("labels", labels), ("annotations", annotations)):
        for key in found:
            if key.startswith(RESERVED_PREFIX):
                message = f"Invalid value: {shown(key)}: is set by the controller"
                yield Cause(field=f"spec.template.metadata.{part}", message=message)


def _disk_causes(document: Document, disk: Document, path: str) -> Iterator[Cause]:
    yield from size_causes(disk["spec"], f"{path}.spec")
    pool, most = _name(document), 10**NUMBER_LENGTH_MAX - 1
    names = (
        own_disk_name(member_name(pool, most), disk["name"]),
        retained_disk_name(pool, disk["name"], most),
    )
    for name in names:
        problem = dns_subdomain_problem(name)
        if problem:
            message = f"Invalid value: {shown(disk['name'])}: the disk {name} {problem}"
            yield Cause(field=f"{path}.name", message=message)
            return


def _name(document: Document) -> str:
    """The name the pool has or will have; a generated one has its full length."""
    metadata = document.get("metadata", {})
    name: str = metadata.get("name") or f"{metadata.get('generateName', 'x')}xxxxx"
    return name


def _pool_rules() -> Iterator[AdmissionRule]:
    """The checks above, for clusters."""
    yield label_name_rule(POOL_NAME_LENGTH_MAX)
    yield target_spec_rule("spec.template.spec")
    yield from template_rules(MEMBER_ANNOTATIONS_BYTES_MAX + len(f"{RESERVED_PREFIX}room"))
    for part in ("labels", "annotations"):
        path = f"spec.template.metadata.{part}"
        yield AdmissionRule(
            expression=each(path, lambda at: f"{at}.all(k, !k.startsWith('{RESERVED_PREFIX}'))"),
            message=f"{path}: keys with {RESERVED_PREFIX} are set by the controller",
        )
    path = "spec.updateStrategy.maxUnavailable"
    yield AdmissionRule(
        expression=each(path, lambda count: f"{count} != 0"),
        message=f"{path}: must be at least 1, or no update could proceed",
    )
    yield size_rule("spec.virtualDiskTemplates.*.spec.size")
    yield not_negative_rule("spec.virtualDiskTemplates.*.reclaim.ttl")


RESOURCES = (
    resource(
        VirtualTargetPool,
        "virtualtargetpools",
        status=True,
        name_problem=pool_name_problem,
        named_removal=True,
        scale=Scale(
            spec=("spec", "replicas"),
            status=("status", "replicas"),
            selector=("status", "selector"),
        ),
        columns=(
            Column(name="Replicas", path=".status.replicas", type="integer"),
            Column(name="Ready", path=".status.readyReplicas", type="integer"),
            Column(name="Available", path=".status.availableReplicas", type="integer"),
            Column(name="Leased", path=".status.leasedReplicas", type="integer"),
            Column(name="Updated", path=".status.updatedReplicas", type="integer"),
        ),
        checks=(virtualtargetpool_causes,),
        admission=tuple(_pool_rules()),
    ),
)
