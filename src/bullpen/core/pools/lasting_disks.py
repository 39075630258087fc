"""The disks of a pool's members: which disk each member has, and what becomes of free ones. Pure.

A member names its disks in its spec; this is what counts, also while it is still stopping.
A disk that is deleted with its member belongs to the member, a retained one to the pool.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from bullpen.api.kinds.virtualdisk import DiskPhase, VirtualDisk, VirtualDiskSpec
from bullpen.api.kinds.virtualtarget import TargetDisk, VirtualTarget, VirtualTargetSpec
from bullpen.api.kinds.virtualtargetpool import (
    DISK_TEMPLATE,
    FREE_SINCE,
    DiskTemplate,
    OnScaleDown,
    VirtualTargetPool,
    own_disk_name,
    retained_disk_name,
)
from bullpen.core.pools import member_names
from bullpen.core.targets import disks
from bullpen.kit import times

UNUSABLE = frozenset({DiskPhase.FAILED, DiskPhase.LOST, DiskPhase.TERMINATING})
"""Phases in which a disk is not given to another member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateDisk:
    name: str
    template: str
    spec: VirtualDiskSpec
    member: str = ""
    """The member it belongs to; empty if it belongs to the pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteDisk:
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EditDisk:
    """Change the size, the owner or the time since which the disk is free."""

    name: str
    size: int | str = ""
    member: str | None = None
    """The member it belongs to from now on; empty for the pool, None for no change."""

    free_since: datetime | None = None
    used: bool = False
    """A member has it: it is no longer free."""


DiskAction = CreateDisk | DeleteDisk | EditDisk


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPlan:
    actions: tuple[DiskAction, ...] = ()
    wake_at: datetime | None = None
    """When the next free disk is too old."""

    created: int = 0
    """How many retained disks were ever created, after this plan."""


@dataclass(slots=True, kw_only=True)
class Assignment:
    """Gives every member its disks; a disk is handed out once."""

    pool: VirtualTargetPool
    targets: tuple[VirtualTarget, ...]
    """All members, also those that are ending; those with settled disks may be left out."""

    found: dict[str, VirtualDisk]
    """The disks of the pool and of these members, by name."""

    next_number: int = 0
    """The number of the next retained disk, as far as the caller knows."""

    first_number: int = 0
    """The number of the next retained disk before any is handed out."""

    new: dict[str, str] = field(default_factory=dict)
    """Names of retained disks to create, with their templates."""

    _given: dict[tuple[str, str], str] = field(default_factory=dict)
    """By member and template, the disk."""

    def __post_init__(self) -> None:
        floor = max(self.next_number, self.pool.status.created_disks)
        self.next_number = self.first_number = max((floor, *self._numbers()))
        self._keep()

    def _numbers(self) -> Iterator[int]:
        """Numbers that no disk has had; those that members name may be yet to be created."""
        named = (name for target in self.targets for name in disks.names(target))
        return (member_names.tail_number(name) + 1 for name in (*self.found, *named))

    def _keep(self) -> None:
        """Every member keeps the disks it has; of two with one disk, the one that has it open."""
        users: dict[str, list[VirtualTarget]] = {}
        for target in self.targets:
            for name in disks.names(target):
                users.setdefault(name, []).append(target)
        for name, claimants in users.items():
            template = self._template_of(name, _name(claimants[0]))
            if template:
                self._given.setdefault((self._keeper(name, claimants), template), name)

    def _keeper(self, disk: str, claimants: Sequence[VirtualTarget]) -> str:
        """The member that keeps a disk that several name."""
        found = self.found.get(disk)
        holder = found.status.attached_to if found is not None else ""
        return min((_name(each) for each in claimants), key=lambda name: (name != holder, name))

    def _template_of(self, disk: str, member: str) -> str:
        """The template of a disk, by its label; by its name, if it is yet to be created."""
        found = self.found.get(disk)
        if found is not None:
            return found.metadata.labels.get(DISK_TEMPLATE, "")
        for template in self.pool.spec.virtual_disk_templates:
            prefix = retained_disk_name(self.pool.metadata.name, template.name, 0)[:-1]
            tail = disk.removeprefix(prefix)
            numbered = tail != disk and tail.isascii() and tail.isdigit()
            if numbered or disk == own_disk_name(member, template.name):
                return template.name
        return ""

    def spec_of(self, member: str, target: VirtualTarget | None) -> VirtualTargetSpec:
        """The spec of a member: the template's, with its own disks in their places.

        A disk of a removed template is left out, except the boot disk of a member that exists.
        """
        spec = self.pool.spec.template.spec
        templates = {each.name: each for each in self.pool.spec.virtual_disk_templates}
        wanted = tuple(
            disk
            if not disk.virtual_disk
            else TargetDisk(virtual_disk=self.disk_of(member, templates[disk.virtual_disk]))
            for disk in spec.disks
            if not disk.virtual_disk or disk.virtual_disk in templates
        )
        boot = self._removed_boot_disk(target, wanted)
        # A member that was stopped by hand stays stopped.
        stopped = target is not None and not target.spec.running
        return replace(spec, disks=(*boot, *wanted), running=spec.running and not stopped)

    def _removed_boot_disk(
        self, target: VirtualTarget | None, wanted: Sequence[TargetDisk]
    ) -> tuple[TargetDisk, ...]:
        first = target.spec.disks[:1] if target is not None else ()
        if not first or not first[0].virtual_disk or first[0] in wanted:
            return ()
        disk = self.found.get(first[0].virtual_disk)
        template = disk.metadata.labels.get(DISK_TEMPLATE, "") if disk is not None else ""
        known = {each.name for each in self.pool.spec.virtual_disk_templates}
        return () if not template or template in known else first

    def disk_of(self, member: str, template: DiskTemplate) -> str:
        """The disk of a member for a template: the one it has, a free one, or a new one."""
        key = member, template.name
        if key not in self._given:
            self._given[key] = self._chosen(member, template)
        return self._given[key]

    def _chosen(self, member: str, template: DiskTemplate) -> str:
        if template.reclaim.on_scale_down is OnScaleDown.DELETE:
            return own_disk_name(member, template.name)
        for disk in self.free(template.name):
            if disk.status.phase not in UNUSABLE:
                return _name(disk)
        name = retained_disk_name(self.pool.metadata.name, template.name, self.next_number)
        self.next_number += 1
        self.new[name] = template.name
        return name

    def free(self, template: str) -> list[VirtualDisk]:
        """The pool's disks of a template that no member has: the best to reuse first.

        Ready ones first, then the most recently freed. A disk of a member that is still
        stopping is not free.
        """
        used = {*self._given.values(), *self._in_use()}
        found = [
            disk
            for name, disk in sorted(self.found.items())
            if disk.metadata.labels.get(DISK_TEMPLATE) == template
            and name not in used
            and owner_of(disk, self.pool) == ""
            and not disk.status.attached_to
            and disk.metadata.deletion_timestamp is None
        ]
        found.sort(key=_freed, reverse=True)
        return sorted(found, key=lambda disk: disk.status.phase is not DiskPhase.READY)

    def keep_only(self, members: Collection[str]) -> None:
        """Forget the disks of members that name none of them yet, except these members.

        A member that waits for an update may wait for long, and each pass may choose another
        disk for it.
        """
        used = set(self._in_use())
        self._given = {
            (member, template): disk
            for (member, template), disk in self._given.items()
            if member in members or disk in used
        }

    def _in_use(self) -> Iterator[str]:
        for target in self.targets:
            yield from disks.names(target)
            yield from target.status.disks


def owner_of(disk: VirtualDisk, pool: VirtualTargetPool) -> str:
    """The member that a disk belongs to; empty for the pool."""
    for reference in disk.metadata.owner_references:
        if reference.controller:
            return "" if reference.uid == pool.metadata.uid else reference.name
    return ""


def plan(assigned: Assignment, *, written: Collection[str] = (), now: datetime) -> DiskPlan:
    """What to do about the disks. ``written``: members that are created or updated in this pass."""
    pool = assigned.pool
    if pool.spec.paused:
        return DiskPlan(created=pool.status.created_disks)
    assigned.keep_only(written)
    actions: list[DiskAction] = []
    wakes: list[datetime] = []
    for template in pool.spec.virtual_disk_templates:
        actions += _creations(assigned, template)
        actions += _edits(assigned, template, now)
        deletes, wake = _ageing(assigned, template, now)
        actions += deletes
        wakes += [wake] if wake is not None else []
    actions += _of_removed_templates(assigned)
    return DiskPlan(
        actions=tuple(actions),
        wake_at=min(wakes, default=None),
        created=max((assigned.first_number, *_numbers_created(actions))),
    )


def _numbers_created(actions: Iterable[DiskAction]) -> Iterator[int]:
    """Numbers that no retained disk has once these are created."""
    for action in actions:
        if isinstance(action, CreateDisk) and not action.member:
            yield member_names.tail_number(action.name) + 1


def _creations(assigned: Assignment, template: DiskTemplate) -> Iterator[CreateDisk]:
    present = {_name(target): target for target in assigned.targets}
    for (member, name), disk in sorted(assigned._given.items()):
        if name != template.name or disk in assigned.found:
            continue
        own = template.reclaim.on_scale_down is OnScaleDown.DELETE
        target = present.get(member)
        # A disk of its own has its member as owner, so that must exist.
        if own and (target is None or target.metadata.deletion_timestamp is not None):
            continue
        yield CreateDisk(name=disk, template=name, spec=template.spec, member=member if own else "")


def _edits(assigned: Assignment, template: DiskTemplate, now: datetime) -> Iterator[EditDisk]:
    """Growth, a changed reclaim, and since when a disk is free."""
    holders = {disk: member for (member, name), disk in assigned._given.items()
               if name == template.name}  # fmt: skip
    free = {_name(disk) for disk in assigned.free(template.name)}
    wanted = disks.bytes_of(template.spec.size)
    retains = template.reclaim.on_scale_down is OnScaleDown.RETAIN
    for name, disk in sorted(assigned.found.items()):
        if disk.metadata.labels.get(DISK_TEMPLATE) != template.name:
            continue
        if disk.metadata.deletion_timestamp is not None:
            continue
        size = disks.bytes_of(disk.spec.size) or disks.bytes_of(disk.status.capacity)
        grows = wanted is not None and size is not None and size < wanted
        member = holders.get(name)
        owner = owner_of(disk, assigned.pool)
        moves = None
        if member is not None and owner != ("" if retains else member):
            moves = "" if retains else member
        marked = FREE_SINCE in disk.metadata.annotations
        edit = EditDisk(
            name=name,
            size=template.spec.size if grows else "",
            member=moves,
            free_since=now if name in free and not marked else None,
            used=marked and member is not None,
        )
        if edit != EditDisk(name=name):
            yield edit


def _ageing(
    assigned: Assignment, template: DiskTemplate, now: datetime
) -> tuple[list[DeleteDisk], datetime | None]:
    """Free disks that are too old, and when the next one will be."""
    free, reclaim = assigned.free(template.name), template.reclaim
    if reclaim.on_scale_down is OnScaleDown.DELETE:
        # The template no longer retains: a free disk has no member to be deleted with.
        return [
            DeleteDisk(name=_name(d), reason="the template no longer retains") for d in free
        ], None
    # A disk that never had content is not worth keeping.
    empty = [d for d in free if d.status.phase is DiskPhase.FAILED and d.status.capacity == ""]
    deletes = [DeleteDisk(name=_name(d), reason="it could not be created") for d in empty]
    if reclaim.ttl is None:
        return deletes, None
    usable = sorted((d for d in free if d.status.phase not in UNUSABLE), key=_freed, reverse=True)
    kept = {_name(disk) for disk in usable[: reclaim.keep]}
    wakes = []
    for disk in free:
        since = free_since(disk)
        if _name(disk) in kept or disk in empty or since is None:
            continue
        due = times.shifted(since, reclaim.ttl)
        if now > due:
            deletes.append(DeleteDisk(name=_name(disk), reason=f"free since {since:%F %T} UTC"))
        else:
            wakes.append(due + timedelta(seconds=1))
    return deletes, min(wakes, default=None)


def _of_removed_templates(assigned: Assignment) -> Iterator[DeleteDisk]:
    """Disks whose template is gone, once no member names or has them."""
    known = {template.name for template in assigned.pool.spec.virtual_disk_templates}
    used = set(assigned._in_use())
    for name, disk in sorted(assigned.found.items()):
        template = disk.metadata.labels.get(DISK_TEMPLATE, "")
        ending = disk.metadata.deletion_timestamp is not None
        if template in known or name in used or disk.status.attached_to or ending:
            continue
        yield DeleteDisk(name=name, reason=f"disk template {template} was removed")


def free_since(disk: VirtualDisk) -> datetime | None:
    """Since when no member has it, as recorded; None if it is not free or unreadable."""
    text = disk.metadata.annotations.get(FREE_SINCE, "")
    try:
        return times.parse(text) if text else None
    except ValueError:
        return None


def _freed(disk: VirtualDisk) -> str:
    return disk.metadata.annotations.get(FREE_SINCE, "")


def _name(found: VirtualDisk | VirtualTarget) -> str:
    return found.metadata.name
