"""VirtualDisk: a disk that can outlive the target it is attached to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from bullpen.api.admission_rules import AdmissionRule, compares, each
from bullpen.api.columns import Column
from bullpen.api.fields import Kind, Rule, Struct, about
from bullpen.api.kinds.virtualtargetclass import GROUP_VERSION
from bullpen.api.meta import Condition, ObjectMeta
from bullpen.api.paths import Document, shown
from bullpen.api.resource import resource
from bullpen.errors import Cause
from bullpen.kit import quantities
from bullpen.kit.quantities import SIZE_PATTERN

SIZE_BYTES_MIN = 1 << 20
SIZE_BYTES_MAX = 64 << 40
PATH_LENGTH_MAX = 4096
DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"


class ImageFormat(StrEnum):
    QCOW2 = "qcow2"
    RAW = "raw"


class DiskPhase(StrEnum):
    PENDING = "Pending"
    """Waits for something: its source, space, or the storage itself."""

    PROVISIONING = "Provisioning"
    READY = "Ready"
    RESIZING = "Resizing"
    LOST = "Lost"
    """It existed, and its content is gone."""

    FAILED = "Failed"
    TERMINATING = "Terminating"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskImage(Struct):
    """An image file on the host, or one to fetch."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(rule="has(self.path) != has(self.url)", message="give either a path or a url"),
        Rule(rule="!has(self.url) || has(self.digest)", message="a url needs a digest"),
    )

    path: str = field(
        default="",
        metadata=about("Absolute path on the host.", pattern="^/", max_length=PATH_LENGTH_MAX),
    )
    url: str = field(
        default="",
        metadata=about(
            "URL to fetch the file from.",
            pattern="^(https?|file)://[^ ]+$",
            max_length=PATH_LENGTH_MAX,
        ),
    )
    digest: str = field(
        default="", metadata=about("Digest of the file; verified.", pattern=DIGEST_PATTERN)
    )
    format: ImageFormat = field(
        default=ImageFormat.QCOW2, metadata=about("Format of the image.", defaulted=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSource(Struct):
    """What the disk contains at first."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.image) != has(self.virtualDisk)",
            message="give either an image or a virtualDisk",
        ),
    )

    image: DiskImage | None = field(default=None, metadata=about("An image to copy."))
    virtual_disk: str = field(
        default="",
        metadata=about(
            "A VirtualDisk of the same namespace to copy.", min_length=1, max_length=253
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualDiskSpec(Struct):
    """Size and first content of the disk."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.size) || has(self.source)",
            message="a disk without a source needs a size",
            field_path=".size",
            reason="FieldValueRequired",
        ),
    )

    size: int | str = field(
        default="",
        metadata=about(
            "Size of the disk. It can be raised, never lowered; that of the source by default.",
            pattern=SIZE_PATTERN,
        ),
    )
    source: DiskSource | None = field(
        default=None, metadata=about("First content of the disk; a blank disk if absent.")
    )
    storage_class_name: str = field(
        default="", metadata=about("StorageClass of its volume, in a cluster.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualDiskStatus(Struct):
    """What is known of the disk."""

    observed_generation: int = field(
        default=0, metadata=about("The metadata.generation these facts are for.")
    )
    phase: DiskPhase = field(
        default=DiskPhase.PENDING, metadata=about("Where it is in its life.", required=True)
    )
    capacity: int | str = field(
        default="", metadata=about("Its size, as a machine sees it.", pattern=SIZE_PATTERN)
    )
    allocated: int | str = field(
        default="", metadata=about("The space it takes in its storage.", pattern=SIZE_PATTERN)
    )
    attached_to: str = field(
        default="", metadata=about("The VirtualTarget that has it; empty if it is free.")
    )
    host: str = field(default="", metadata=about("The host that stores it."))
    conditions: tuple[Condition, ...] = field(
        default=(), metadata=about("Latest observations: Ready.", list_keys=("type",))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualDisk(Kind):
    """A disk that can outlive the target it is attached to."""

    api_version: ClassVar[str] = GROUP_VERSION
    kind: ClassVar[str] = "VirtualDisk"
    rules: ClassVar[tuple[Rule, ...]] = (
        # Not a rule of the spec: the disk template of a pool may name another image.
        Rule(
            rule="has(self.spec.source) == has(oldSelf.spec.source)"
            " && (!has(self.spec.source) || self.spec.source == oldSelf.spec.source)",
            message="source cannot be changed; create another disk",
            field_path=".spec.source",
        ),
    )

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: VirtualDiskSpec = field(
        metadata=about(
            "Size and first content of the disk. The size can only be raised.", required=True
        )
    )
    status: VirtualDiskStatus = field(
        default=VirtualDiskStatus(), metadata=about("What is known of the disk.")
    )


def virtualdisk_causes(document: Document, old: Document | None) -> Iterator[Cause]:
    """Checks of a disk beyond its schema."""
    wrong = tuple(size_causes(document["spec"], "spec"))
    if wrong:
        yield from wrong
        return
    before = size_bytes(old["spec"]) if old is not None else None
    after = size_bytes(document["spec"])
    if before is not None and (after is None or after < before):
        assert old is not None
        message = (
            f"Invalid value: {shown(document['spec'].get('size', ''))}: a disk never shrinks;"
            f" its size is {old['spec']['size']}"
        )
        yield Cause(field="spec.size", message=message)


def size_causes(spec: Mapping[str, object], path: str) -> Iterator[Cause]:
    """The errors in the size of the disk that ``spec`` at ``path`` describes."""
    try:
        found = size_bytes(spec)
    except ValueError:
        found = 0  # larger than any number
    if found is not None and not SIZE_BYTES_MIN <= found <= SIZE_BYTES_MAX:
        message = f"Invalid value: {shown(spec['size'])}: must be between 1Mi and 64Ti"
        yield Cause(field=f"{path}.size", message=message)


def size_bytes(spec: Mapping[str, object]) -> int | None:
    """The size in the spec of a disk, a document; None if it has none."""
    size = spec.get("size", "")
    return quantities.parse(size).whole() if isinstance(size, int | str) and size != "" else None


def size_rule(path: str) -> AdmissionRule:
    """``size_causes`` of the size at ``path``, for clusters."""

    def bounded(size: str) -> str:
        least = compares(size, ">= 0", "quantity('1Mi')")
        most = compares(size, "<= 0", "quantity('64Ti')")
        return f"(string({size}) == '' || ({least} && {most}))"

    return AdmissionRule(
        expression=each(path, bounded), message=f"{path}: must be between 1Mi and 64Ti"
    )


_BEFORE = "oldObject != null && has(oldObject.spec.size) && string(oldObject.spec.size) != ''"
_GROWS = compares("object.spec.size", ">= 0", "quantity(string(oldObject.spec.size))")


RESOURCES = (
    resource(
        VirtualDisk,
        "virtualdisks",
        status=True,
        columns=(
            Column(name="Phase", path=".status.phase"),
            Column(name="Capacity", path=".status.capacity"),
            Column(name="Attached To", path=".status.attachedTo"),
            Column(name="Allocated", path=".status.allocated", priority=1),
        ),
        checks=(virtualdisk_causes,),
        admission=(
            size_rule("spec.size"),
            AdmissionRule(
                expression=f"!({_BEFORE}) || (has(object.spec.size) && {_GROWS})",
                message="spec.size: a disk never shrinks",
            ),
        ),
    ),
)
