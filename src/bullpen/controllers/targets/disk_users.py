"""Which targets name which disk, and which disks are copies of it, kept current from the views."""

from __future__ import annotations

from collections.abc import Callable

from bullpen.api.kinds.virtualdisk import VirtualDisk
from bullpen.api.kinds.virtualtarget import VirtualTarget
from bullpen.controllers.views import Views
from bullpen.core.targets import disks
from bullpen.runtime.informer import Key, key_of


class DiskUsers:
    """The targets of every disk: those that name it, and those whose machine may have it open."""

    def __init__(self, views: Views) -> None:
        self._targets = views[VirtualTarget]
        self._disks = views[VirtualDisk]
        self._by_disk: dict[Key, set[str]] = {}
        self._copies: dict[Key, set[str]] = {}
        self._listeners: list[Callable[[Key], None]] = []
        self._targets.listen(self._changed)
        self._disks.listen(self._copied)

    def listen(self, listener: Callable[[Key], None]) -> None:
        """Call ``listener`` with every disk whose targets changed; this method is a ``Watch``."""
        self._listeners.append(listener)

    def look_at(self, disk: Key) -> None:
        """The content of a disk changed: let the listeners look at it."""
        for listener in self._listeners:
            listener(disk)

    def of(self, disk: Key) -> tuple[VirtualTarget, ...]:
        found = (self._targets.get(disk[0], name) for name in sorted(self._by_disk.get(disk, ())))
        return tuple(target for target in found if target is not None)

    def copies(self, disk: Key) -> tuple[VirtualDisk, ...]:
        """The disks that are, or are to become, copies of this one."""
        found = (self._disks.get(disk[0], name) for name in sorted(self._copies.get(disk, ())))
        return tuple(copy for copy in found if copy is not None)

    def _copied(self, old: VirtualDisk | None, new: VirtualDisk | None) -> None:
        for disk, add in ((old, False), (new, True)):
            source = disks.source_of(disk) if disk is not None else ""
            if disk is None or not source:
                continue
            namespace, name = key_of(disk)
            found = self._copies.setdefault((namespace, source), set())
            (found.add if add else found.discard)(name)
            if not found:
                del self._copies[namespace, source]

    def _changed(self, old: VirtualTarget | None, new: VirtualTarget | None) -> None:
        before = _disks(old) if old is not None else frozenset()
        after = _disks(new) if new is not None else frozenset()
        found = new or old
        assert found is not None
        namespace, name = key_of(found)
        for disk in sorted(before - after):
            users = self._by_disk.get((namespace, disk), set())
            users.discard(name)
            if not users:
                self._by_disk.pop((namespace, disk), None)
        for disk in sorted(after):
            self._by_disk.setdefault((namespace, disk), set()).add(name)
        if old is None or new is None or _facts(old) != _facts(new):
            for disk in sorted(before | after):
                self.look_at((namespace, disk))


def _disks(target: VirtualTarget) -> frozenset[str]:
    return frozenset((*disks.names(target), *target.status.disks))


def _facts(target: VirtualTarget) -> tuple[object, ...]:
    full = disks.without_space(target)
    return _disks(target), target.status.disks, target.metadata.deletion_timestamp, full
