"""Creates, grows and deletes the content of VirtualDisks, and says which target has each.

It is the only writer of ``status.attachedTo``, so a disk has one target at most. The content
is looked at regularly: a file that is lost or damaged causes no event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from bullpen.api.kinds.virtualdisk import DiskPhase, VirtualDisk
from bullpen.api.objects import Objects
from bullpen.controllers.object_edit import change, change_status
from bullpen.controllers.targets.disk_users import DiskUsers
from bullpen.controllers.views import Views
from bullpen.core import conditions
from bullpen.core.targets import disks
from bullpen.core.targets.disks import Create, DiskView, Grow, Protect, Remove, Report
from bullpen.errors import LabError, NoCapacity, NotFound, Unavailable
from bullpen.kit.clock import Clock
from bullpen.placements.base import DiskStorage
from bullpen.runtime.events import Events
from bullpen.runtime.informer import Key, key_of
from bullpen.runtime.loop import Outcome

WORKERS = 8
"""Disks processed concurrently; copying one takes a while and delays no other."""

STEPS_MAX = 5
"""Steps of one pass: protect, announce, create, grow, report."""


class DiskReconciler:
    """Reconciles one VirtualDisk."""

    name = "virtualdisks"

    def __init__(
        self,
        objects: Objects,
        views: Views,
        users: DiskUsers,
        storage: DiskStorage | None,
        *,
        clock: Clock,
        events: Events,
    ) -> None:
        """``storage`` is None in a process that cannot store disks."""
        self._objects = objects
        self._disks = views[VirtualDisk]
        self._users = users
        self._storage = storage
        self._clock = clock
        self._events = events

    async def reconcile(self, key: Key) -> Outcome:
        for _ in range(STEPS_MAX):
            disk = self._disks.get(*key)
            if disk is None:
                return Outcome()
            seen = await self._observe(disk)
            report = await self._perform(seen, disks.next_step(seen))
            if isinstance(report, Outcome):
                return report
            if report is not None:
                await self._say(seen, report)
                return Outcome(wake_at=self._clock.now() + report.retry)
        return Outcome(wake_at=self._clock.now() + disks.RETRY_AFTER)

    async def _observe(self, disk: VirtualDisk) -> DiskView:
        namespace = disk.metadata.namespace
        stored = None
        if self._storage is not None:
            key, uid = key_of(disk), disk.metadata.uid
            stored = await self._storage.look(key, uid, attached_to=disk.status.attached_to)
        name = disks.source_of(disk)
        users = self._users.of((namespace, name)) if name else ()
        return DiskView(
            disk=disk,
            stored=stored,
            storage=self._storage is not None,
            targets=self._users.of(key_of(disk)),
            source=self._disks.get(namespace, name) if name else None,
            source_open=any(disks.opened(target, name) for target in users),
        )

    async def _perform(self, seen: DiskView, step: disks.Step) -> Report | Outcome | None:
        """Perform a step: what to report, the end of the pass, or None to look again."""
        disk, storage = seen.disk, self._storage
        key, uid = key_of(disk), disk.metadata.uid
        try:
            match step:
                case Report():
                    return step
                case Protect():
                    await self._edit_finalizers(disk, (*disk.metadata.finalizers, disks.FINALIZER))
                case Create():
                    assert storage is not None, "nothing is created without a storage"
                    if await self._announce(seen):
                        return None  # its source may have been opened meanwhile
                    await storage.create(key, uid, step)
                    self._events.emit(disk, reason="DiskCreated", message=_described(step))
                case Grow(size_bytes=size):
                    assert storage is not None, "nothing grows without a storage"
                    await storage.grow(key, uid, size)
                    text = f"grown to {disks.text_of(size)}"
                    self._events.emit(disk, reason="DiskGrown", message=text)
                case Remove():
                    if storage is not None:
                        await storage.delete(key, uid)
                    others = (f for f in disk.metadata.finalizers if f != disks.FINALIZER)
                    await self._edit_finalizers(disk, tuple(others))
                    return Outcome()
                case _:
                    assert_never(step)
        except NotFound:
            return Outcome()
        except LabError as error:
            return _failure(disk, error)
        return None

    async def _announce(self, seen: DiskView) -> bool:
        """Say that content is being created, which may take minutes; whether that was news.

        No machine is started with a disk while it is said to be copied.
        """
        report = Report(phase=DiskPhase.PROVISIONING, reason="Provisioning")
        failed = seen.disk.status.phase is DiskPhase.FAILED and not disks.source_of(seen.disk)
        if failed or seen.disk.status.phase is report.phase:
            return False
        await self._say(seen, report)
        return True

    async def _edit_finalizers(self, disk: VirtualDisk, wanted: tuple[str, ...]) -> None:
        def edit(found: VirtualDisk) -> VirtualDisk:
            return replace(found, metadata=replace(found.metadata, finalizers=wanted))

        await change(self._objects, self._disks, disk, edit)

    async def _say(self, seen: DiskView, report: Report) -> None:
        now, host = self._clock.now(), self._storage.host if self._storage else ""
        newest = self._disks.get(*key_of(seen.disk)) or seen.disk

        def edit(found: VirtualDisk) -> object:
            return disks.status(replace(seen, disk=found), report, host=host, now=now)

        try:
            written = await change_status(self._objects, self._disks, newest, edit)
        except NotFound:
            return
        full, was_full = report.reason == disks.NO_SPACE, _reason(newest) == disks.NO_SPACE
        news = written.status.phase is not newest.status.phase or (full and not was_full)
        if news and report.message:
            warning = full or report.phase in (DiskPhase.FAILED, DiskPhase.LOST)
            self._events.emit(
                written, reason=report.reason, message=report.message, warning=warning
            )


def watch_disks(views: Views, users: DiskUsers, add: Callable[[Key], None]) -> None:
    """Start a pass when a disk, its targets, or the disk it is copied from changes."""

    def changed(old: VirtualDisk | None, new: VirtualDisk | None) -> None:
        value = new or old
        assert value is not None
        key = key_of(value)
        # Not after every write of its status: a step that fails is repeated after a pause.
        if old is None or new is None or _facts(old) != _facts(new):
            add(key)
        for copy in users.copies(key):
            add(key_of(copy))

    def used(disk: Key) -> None:
        add(disk)
        for copy in users.copies(disk):
            add(key_of(copy))

    views[VirtualDisk].listen(changed)
    users.listen(used)


def _facts(disk: VirtualDisk) -> tuple[object, ...]:
    meta = disk.metadata
    return meta.uid, meta.generation, meta.deletion_timestamp, meta.finalizers


def _reason(disk: VirtualDisk) -> str:
    found = conditions.get(disk.status.conditions, "Ready")
    return found.reason if found is not None else ""


def _failure(disk: VirtualDisk, error: LabError) -> Report:
    grown = disk.status.capacity != ""
    if isinstance(error, NoCapacity):
        phase = DiskPhase.RESIZING if grown else DiskPhase.PENDING
        return Report(
            phase=phase, reason=disks.NO_SPACE, message=error.message, retry=disks.RETRY_AFTER
        )
    if isinstance(error, Unavailable):
        phase = disk.status.phase if grown else DiskPhase.PENDING
        return Report(
            phase=phase, reason=disks.STORAGE_FAILED, message=error.message, retry=disks.RETRY_AFTER
        )
    if grown:
        # It stays as it is, and machines can use it.
        return Report(phase=DiskPhase.READY, reason=disks.RESIZE_REFUSED, message=error.message)
    return Report(phase=DiskPhase.FAILED, reason="SourceRefused", message=error.message)


def _described(step: Create) -> str:
    if step.copy_of is not None:
        return f"copied from VirtualDisk {step.copy_of.metadata.name}"
    if step.image is not None:
        return f"copied from {step.image.path or step.image.url}"
    return "created blank"
