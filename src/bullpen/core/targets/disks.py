"""A lasting disk: what is done about it next, which target has it, and its status. Pure.

The controller observes the disk, its content and the targets that name it, calls
``next_step`` and performs the step. Content is created once: a disk whose content is gone
stays without it, because an empty disk in its place would look like the lost one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from bullpen.api.kinds.virtualdisk import DiskImage, DiskPhase, VirtualDisk, VirtualDiskStatus
from bullpen.api.kinds.virtualtarget import VirtualTarget
from bullpen.core import conditions
from bullpen.kit import quantities
from bullpen.kit.quantities import Family, Quantity

FINALIZER = "virtualtarget.jumpstarter.dev/disk"
"""Keeps a VirtualDisk until no target has it and its content is deleted."""

LOOK_EVERY = timedelta(minutes=1)
"""How often the content of a disk is looked at without any other event."""

RETRY_AFTER = timedelta(seconds=15)
"""Pause after a step failed for lack of space or of an answer."""

MESSAGE_LENGTH_MAX = 500

NO_SPACE = "NoSpace"
"""Reason of the condition Ready: the storage is full."""

STORAGE_FAILED = "StorageFailed"
RESIZE_REFUSED = "ResizeRefused"

_NOT_GROWN = frozenset({NO_SPACE, RESIZE_REFUSED})
"""Reasons for which the storage does not make a disk larger, however often it is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDisk:
    """The content of a disk, as its storage sees it."""

    virtual_bytes: int
    allocated_bytes: int
    problem: str = ""
    """Why it cannot be used; empty if it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskView:
    """Everything a decision about one disk looks at."""

    disk: VirtualDisk
    stored: StoredDisk | None = None
    storage: bool = True
    """Whether this process can store disks."""

    targets: tuple[VirtualTarget, ...] = ()
    """Every target that names the disk or may have it open."""

    source: VirtualDisk | None = None
    """The disk to copy, if it exists."""

    source_open: bool = False
    """A machine may have the source open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    size_bytes: int | None
    """None for the size of the source."""

    image: DiskImage | None = None
    copy_of: VirtualDisk | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grow:
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Delete the content, then let the object go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protect:
    """Set the finalizer, before anything is created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Nothing to do but to say this."""

    phase: DiskPhase
    reason: str
    message: str = ""
    retry: timedelta = LOOK_EVERY
    ready: bool = True
    """False if the disk exists but cannot be used as it should."""


Step = Create | Grow | Remove | Protect | Report


def opened(target: VirtualTarget, disk: str) -> bool:
    """Whether the machine of ``target`` may have this disk open."""
    return disk in target.status.disks


def source_of(disk: VirtualDisk) -> str:
    """The disk that this one is a copy of; empty if it is none."""
    return disk.spec.source.virtual_disk if disk.spec.source else ""


def being_copied(copy: VirtualDisk) -> bool:
    """Whether the source of ``copy`` is being read: no machine can be started with it."""
    return copy.status.phase is DiskPhase.PROVISIONING and source_of(copy) != ""


def names(target: VirtualTarget) -> tuple[str, ...]:
    """The disks that ``target`` names, in boot order."""
    return tuple(disk.virtual_disk for disk in target.spec.disks if disk.virtual_disk)


def holder(disk: VirtualDisk, targets: Sequence[VirtualTarget]) -> str:
    """The one target that has the disk; empty if none does.

    A machine that may have it open keeps it. Otherwise the present holder does as long as it
    names the disk, then the oldest target that names it; equal ages are decided by name.
    """
    name = disk.metadata.name
    using = sorted(each.metadata.name for each in targets if opened(each, name))
    if using:
        present = disk.status.attached_to
        return present if present in using else using[0]
    asking = [each for each in targets if name in names(each) and not _ending(each)]
    if any(each.metadata.name == disk.status.attached_to for each in asking):
        return disk.status.attached_to
    asking.sort(key=_age)
    return asking[0].metadata.name if asking and not _ending(disk) else ""


def _age(target: VirtualTarget) -> tuple[str, str]:
    created = target.metadata.creation_timestamp
    return (created.isoformat() if created else "", target.metadata.name)


def _ending(found: VirtualTarget | VirtualDisk) -> bool:
    return found.metadata.deletion_timestamp is not None


def next_step(seen: DiskView) -> Step:
    """The next step for one disk."""
    disk = seen.disk
    if _ending(disk):
        return _removal(seen)
    if not seen.storage:
        text = "no part of this installation stores disks"
        return Report(phase=DiskPhase.PENDING, reason="StorageNotAvailable", message=text)
    if FINALIZER not in disk.metadata.finalizers:
        return Protect()
    if seen.stored is None:
        return _lost(disk) if disk.status.capacity != "" else _creation(seen)
    if seen.stored.problem:
        return Report(phase=DiskPhase.FAILED, reason="Damaged", message=seen.stored.problem)
    return _use(seen, seen.stored)


def _removal(seen: DiskView) -> Step:
    using = holder(seen.disk, seen.targets)
    if using:
        text = f"VirtualTarget {using} has it; it is deleted once no target does"
        return Report(phase=DiskPhase.TERMINATING, reason="InUse", message=text)
    return Remove()


def _lost(disk: VirtualDisk) -> Report:
    text = "its content is gone; delete the disk, or restore its file and wait a minute"
    return Report(phase=DiskPhase.LOST, reason="ContentLost", message=text)


def _creation(seen: DiskView) -> Step:
    spec = seen.disk.spec
    size = bytes_of(spec.size)
    if spec.source is None or spec.source.image is not None:
        return Create(size_bytes=size, image=spec.source.image if spec.source else None)
    name, source = spec.source.virtual_disk, seen.source
    if source is None:
        return _waits("SourceNotFound", f"VirtualDisk {name} does not exist")
    if source.status.phase is not DiskPhase.READY or _ending(source):
        return _waits("SourceNotReady", f"VirtualDisk {name} is {source.status.phase}")
    if seen.source_open:
        text = f"VirtualDisk {name} is open in a machine; stop its target to copy it"
        return _waits("SourceInUse", text)
    capacity = bytes_of(source.status.capacity)
    if size is not None and capacity is not None and size < capacity:
        return too_small(size, capacity)
    return Create(size_bytes=size, copy_of=source)


def _waits(reason: str, message: str) -> Report:
    return Report(phase=DiskPhase.PENDING, reason=reason, message=message)


def too_small(size: int, source: int) -> Report:
    """A disk cannot hold less than its source."""
    text = f"spec.size is {text_of(size)}, and the source has {text_of(source)}; raise it"
    return Report(phase=DiskPhase.FAILED, reason="SizeTooSmall", message=text)


def _use(seen: DiskView, stored: StoredDisk) -> Step:
    users = (each for each in seen.targets if opened(each, seen.disk.metadata.name))
    paused = next(filter(without_space, users), None)
    if paused is not None:
        text = f"VirtualTarget {paused.metadata.name} is paused until its storage has space again"
        return Report(phase=DiskPhase.READY, reason=NO_SPACE, message=text, ready=False)
    wanted = bytes_of(seen.disk.spec.size)
    if wanted is None or wanted <= stored.virtual_bytes:
        return Report(phase=DiskPhase.READY, reason="Ready")
    if any(opened(target, seen.disk.metadata.name) for target in seen.targets):
        failed = conditions.get(seen.disk.status.conditions, "Ready")
        if failed is not None and not grows_soon(seen.disk):
            # Another restart of the machine would change nothing.
            return Report(phase=DiskPhase.READY, reason=failed.reason, message=failed.message)
        text = "a machine has it open and grows it, or cannot before its target is restarted"
        return Report(phase=DiskPhase.RESIZING, reason="ResizePending", message=text)
    return Grow(size_bytes=wanted)


def without_space(target: VirtualTarget) -> bool:
    """Whether the machine of ``target`` is paused because nothing can be written."""
    found = conditions.get(target.status.conditions, "Ready")
    return found is not None and found.reason == NO_SPACE


def status(seen: DiskView, report: Report, *, host: str, now: datetime) -> VirtualDiskStatus:
    """The status after a pass that ended with ``report``."""
    disk, stored = seen.disk, seen.stored
    old, generation = disk.status, disk.metadata.generation
    ready = report.ready and report.phase in (DiskPhase.READY, DiskPhase.RESIZING)
    return replace(
        old,
        observed_generation=generation,
        phase=report.phase,
        capacity=text_of(stored.virtual_bytes) if stored else old.capacity,
        allocated=text_of(stored.allocated_bytes) if stored else old.allocated,
        attached_to=holder(disk, seen.targets),
        host=host if stored else old.host,
        conditions=conditions.condition(
            old.conditions,
            "Ready",
            status=ready,
            reason=report.reason,
            message=report.message[:MESSAGE_LENGTH_MAX],
            generation=generation,
            now=now,
        ),
    )


def grows(disk: VirtualDisk) -> bool:
    """Whether the content is smaller than the disk should be."""
    wanted, present = bytes_of(disk.spec.size), bytes_of(disk.status.capacity)
    return wanted is not None and present is not None and wanted > present


def grows_soon(disk: VirtualDisk) -> bool:
    """Whether the storage makes the disk larger as soon as no machine has it open."""
    found = conditions.get(disk.status.conditions, "Ready")
    known = disk.status.observed_generation == disk.metadata.generation
    failed = known and found is not None and found.reason in _NOT_GROWN
    return grows(disk) and not failed


def usable(disk: VirtualDisk) -> bool:
    """Whether a machine can be started with the disk."""
    return disk.status.phase in (DiskPhase.READY, DiskPhase.RESIZING) and not _ending(disk)


def bytes_of(size: int | str) -> int | None:
    return quantities.parse(size).whole() if size != "" else None


def text_of(amount: int) -> str:
    return quantities.text(Quantity(quantities.parse(amount).amount, Family.BINARY))
