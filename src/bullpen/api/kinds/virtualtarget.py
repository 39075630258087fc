"""VirtualTarget: one lasting target, made by hand or by a pool.

Its Exporter has its name and its labels, so it is leased like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from bullpen.api.admission_rules import AdmissionRule, each, label_name_rule
from bullpen.api.columns import Column
from bullpen.api.exporter_template import Driver
from bullpen.api.fields import Kind, Rule, Struct, about
from bullpen.api.kinds.virtualdisk import DiskImage
from bullpen.api.kinds.virtualtargetclass import GROUP_VERSION
from bullpen.api.meta import Condition, ObjectMeta
from bullpen.api.paths import Document, shown
from bullpen.api.resource import resource
from bullpen.errors import Cause
from bullpen.kit.names import DNS_LABEL_LENGTH_MAX, dns_label_problem

DISKS_MAX = 16

RESTART = "virtualtarget.jumpstarter.dev/restart"
"""Annotation: a new value restarts the target once, and approves a change that needs it."""

DURING_LEASE = "virtualtarget.jumpstarter.dev/during-lease"
"""Annotation with the name of a lease that a restart, stop or deletion may interrupt."""

RESERVED_PREFIX = "virtualtarget.jumpstarter.dev/"
"""Labels and annotations that the controllers set; a template must not."""


class RestartPolicy(StrEnum):
    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


class UpdateApproval(StrEnum):
    AUTOMATIC = "Automatic"
    MANUAL = "Manual"


class TargetRecycleStrategy(StrEnum):
    KEEP = "Keep"
    IN_PLACE_REUSE = "InPlaceReuse"


class TargetPhase(StrEnum):
    PENDING = "Pending"
    """Waits for its class, its disks, its Exporter or capacity."""

    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    FAILED = "Failed"
    TERMINATING = "Terminating"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetDisk(Struct):
    """A disk of the target."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.virtualDisk) != has(self.image)",
            message="give either a virtualDisk or an image",
        ),
    )

    virtual_disk: str = field(
        default="",
        metadata=about("A VirtualDisk of the same namespace.", min_length=1, max_length=253),
    )
    image: DiskImage | None = field(
        default=None, metadata=about("An image that targets share; it is read only.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualTargetSpec(Struct):
    """What the target is and whether it runs."""

    virtual_target_class_name: str = field(
        metadata=about("A VirtualTargetClass in the same namespace.", required=True, min_length=1)
    )
    parameters: Mapping[str, object] = field(
        default_factory=dict, metadata=about("Settings, merged deeply over those of the class.")
    )
    drivers: tuple[Driver, ...] = field(
        default=(), metadata=about("The drivers, by name.", list_keys=("name",), max_items=64)
    )
    running: bool = field(
        default=True,
        metadata=about("Whether it should run; a stopped target keeps its disks.", defaulted=True),
    )
    restart_policy: RestartPolicy = field(
        default=RestartPolicy.ALWAYS,
        metadata=about("Whether it is started again after it ended by itself.", defaulted=True),
    )
    update_approval: UpdateApproval = field(
        default=UpdateApproval.AUTOMATIC,
        metadata=about(
            "When a change that needs a restart takes effect: once no lease holds the target, or"
            f" after approval by the annotation {RESTART}.",
            defaulted=True,
        ),
    )
    recycle_strategy: TargetRecycleStrategy = field(
        default=TargetRecycleStrategy.KEEP,
        metadata=about(
            "What happens between two leases: nothing, or a reset of all but its disks.",
            defaulted=True,
        ),
    )
    disks: tuple[TargetDisk, ...] = field(
        default=(),
        metadata=about("Disks in boot order.", list_type="atomic", max_items=DISKS_MAX),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity(Struct):
    """How the machine identifies itself; chosen once and kept for life."""

    uuid: str = field(default="", metadata=about("UUID of the machine."))
    mac: str = field(default="", metadata=about("Address of its first network card."))
    serial: str = field(default="", metadata=about("Serial number."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts(Struct):
    """How often the target ended by itself, and when it is started again."""

    count: int = field(
        metadata=about("Ends since it last ran steadily.", format="int32", required=True)
    )
    total: int = field(default=0, metadata=about("Ends since it was created.", format="int32"))
    start: int = field(
        default=0, metadata=about("The start that ended last, as status.starts counts them.")
    )
    last_time: datetime = field(metadata=about("When it last ended.", required=True))
    retry_time: datetime = field(
        metadata=about("It is not started before this time.", required=True, micro=True)
    )
    reason: str = field(default="", metadata=about("Why it ended, in CamelCase."))
    message: str = field(default="", metadata=about("Human-readable message."))


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualTargetStatus(Struct):
    """What is known of the target."""

    observed_generation: int = field(
        default=0, metadata=about("The metadata.generation these facts are for.")
    )
    phase: TargetPhase = field(
        default=TargetPhase.PENDING, metadata=about("Where it is in its life.", required=True)
    )
    host: str = field(default="", metadata=about("The host that runs it."))
    provider_id: str = field(default="", metadata=about("The backend's name for it."))
    addresses: tuple[str, ...] = field(
        default=(), metadata=about("Network addresses, if the backend knows them.")
    )
    identity: Identity | None = field(
        default=None, metadata=about("Its identity, chosen once and kept for life.")
    )
    exporter: str = field(default="", metadata=about("Name of its Exporter."))
    lease: str = field(default="", metadata=about("The lease that holds it; empty if it is free."))
    written_revision: str = field(
        default="", metadata=about("Digest of the settings it should run with.")
    )
    effective_revision: str = field(
        default="", metadata=about("Digest of the settings it runs with.")
    )
    start_revision: str = field(
        default="", metadata=about("Digest of those settings that only a restart changes.")
    )
    restarted: str = field(
        default="", metadata=about(f"Last value of the annotation {RESTART} that was carried out.")
    )
    disks: tuple[str, ...] = field(
        default=(),
        metadata=about("The VirtualDisks its machine may have open.", list_type="atomic"),
    )
    starts: int = field(default=0, metadata=about("How often it was started."))
    started_at: datetime | None = field(default=None, metadata=about("When it was last started."))
    restarts: Restarts | None = field(
        default=None, metadata=about("Ends by itself, while they count.")
    )
    conditions: tuple[Condition, ...] = field(
        default=(),
        metadata=about(
            "Latest observations: Ready, DisksReady, RestartRequired.", list_keys=("type",)
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualTarget(Kind):
    """One lasting target, with an Exporter of its name and labels."""

    api_version: ClassVar[str] = GROUP_VERSION
    kind: ClassVar[str] = "VirtualTarget"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: VirtualTargetSpec = field(
        metadata=about("What the target is and whether it runs.", required=True)
    )
    status: VirtualTargetStatus = field(
        default=VirtualTargetStatus(), metadata=about("What is known of the target.")
    )


def virtualtarget_causes(document: Document, old: Document | None) -> Iterator[Cause]:
    """Checks of a target beyond its schema."""
    yield from target_spec_causes(document["spec"], "spec")


def target_spec_causes(spec: Document, path: str) -> Iterator[Cause]:
    """The errors in the spec of a target, which is at ``path`` in its document."""
    seen: set[str] = set()
    for index, disk in enumerate(spec.get("disks", ())):
        name = disk.get("virtualDisk", "")
        if name and name in seen:
            field_path = f"{path}.disks[{index}].virtualDisk"
            yield Cause(
                field=field_path,
                message=f"Duplicate value: {shown(name)}",
                reason="FieldValueDuplicate",
            )
        seen.add(name)


def target_spec_rule(path: str) -> AdmissionRule:
    """``target_spec_causes`` of the spec at ``path``, for clusters."""

    def distinct(disks: str) -> str:
        named = "has(d.virtualDisk) && d.virtualDisk != ''"
        same = "has(e.virtualDisk) && e.virtualDisk == d.virtualDisk"
        return f"{disks}.all(d, !({named}) || {disks}.exists_one(e, {same}))"

    return AdmissionRule(
        expression=each(f"{path}.disks", distinct),
        message=f"{path}.disks: no two entries may name the same VirtualDisk",
    )


RESOURCES = (
    resource(
        VirtualTarget,
        "virtualtargets",
        status=True,
        name_problem=dns_label_problem,
        columns=(
            Column(name="Phase", path=".status.phase"),
            Column(name="Ready", path='.status.conditions[?(@.type=="Ready")].status'),
            Column(name="Lease", path=".status.lease"),
            Column(name="Class", path=".spec.virtualTargetClassName"),
            Column(name="Host", path=".status.host", priority=1),
        ),
        checks=(virtualtarget_causes,),
        admission=(label_name_rule(DNS_LABEL_LENGTH_MAX), target_spec_rule("spec")),
    ),
)
