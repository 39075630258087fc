"""The members and disks of every pool of lasting targets, updated change by change."""

from __future__ import annotations

from collections.abc import Callable

from bullpen.api.fields import Kind
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.virtualdisk import VirtualDisk
from bullpen.api.kinds.virtualtarget import VirtualTarget
from bullpen.api.objects import meta_of
from bullpen.controllers.views import Views
from bullpen.core.pools.lasting_members import LastingMembers
from bullpen.core.pools.lasting_pool import LastingMember
from bullpen.runtime.informer import key_of


class LastingIndex:
    """By the uid of a pool, its members with their leases, and the disks of both."""

    def __init__(self, views: Views) -> None:
        self._targets = views[VirtualTarget]
        self._exporters = views.exporters
        self._pools: dict[str, LastingMembers] = {}
        self._pool_of: dict[str, str] = {}
        """By the uid of a member, the uid of its pool."""

        self._owned: dict[str, dict[str, VirtualDisk]] = {}
        """Disks by the uid of their owner: a member may become known after its disks."""

        self._listeners: list[Callable[[str], None]] = []
        views[VirtualTarget].listen(self._target_changed)
        views[VirtualDisk].listen(self._disk_changed)
        views.exporters.listen(self._exporter_changed)

    def of(self, uid: str) -> LastingMembers:
        found = self._pools.get(uid)
        return found if found is not None else LastingMembers()

    def knows_below(self, uid: str, number: int) -> None:
        """The API was asked about all members of a pool with a lower number."""
        self._pool(uid).knows_below(number)

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with the uid of every pool whose members or disks change."""
        self._listeners.append(listener)

    def _target_changed(self, old: VirtualTarget | None, new: VirtualTarget | None) -> None:
        before, after = controller_uid(old), controller_uid(new)
        same = old is not None and new is not None and old.metadata.uid == new.metadata.uid
        if old is not None and before and not (same and before == after):
            pool = self._pool(before)
            pool.remove(old.metadata.name)
            self._pool_of.pop(old.metadata.uid, None)
            for name in self._owned.get(old.metadata.uid, ()):
                pool.remove_disk(name)
        if new is not None and after:
            pool = self._pool(after)
            if self._pool_of.get(new.metadata.uid) != after:
                self._pool_of[new.metadata.uid] = after
                for disk in self._owned.get(new.metadata.uid, {}).values():
                    pool.put_disk(disk)
            pool.put(self._member(new))
        self._tell(before, after)

    def _disk_changed(self, old: VirtualDisk | None, new: VirtualDisk | None) -> None:
        before, after = controller_uid(old), controller_uid(new)
        pools = self._pool_of.get(before, before), self._pool_of.get(after, after)
        if old is not None and before and (new is None or before != after):
            owned = self._owned.get(before, {})
            owned.pop(old.metadata.name, None)
            if not owned:
                self._owned.pop(before, None)
            if pools[0] != pools[1] or new is None:
                self._pool(pools[0]).remove_disk(old.metadata.name)
        if new is not None and after:
            self._owned.setdefault(after, {})[new.metadata.name] = new
            self._pool(pools[1]).put_disk(new)
        self._tell(*pools)

    def _exporter_changed(self, old: Exporter | None, new: Exporter | None) -> None:
        value = new or old
        assert value is not None
        if old is not None and new is not None and old.status.lease_ref == new.status.lease_ref:
            return
        pool = self._pool_of.get(controller_uid(value), "")
        target = self._targets.get(*key_of(value))
        if pool and target is not None and controller_uid(target) == pool:
            self._pool(pool).put(self._member(target))
            self._tell(pool)

    def _member(self, target: VirtualTarget) -> LastingMember:
        exporter = self._exporters.get(*key_of(target))
        held = exporter is not None and exporter.status.lease_ref is not None
        return LastingMember(target=target, leased=bool(target.status.lease) or held)

    def _pool(self, uid: str) -> LastingMembers:
        return self._pools.setdefault(uid, LastingMembers())

    def _tell(self, *pools: str) -> None:
        for uid in dict.fromkeys(pools):
            if not uid:
                continue
            found = self._pools.get(uid)
            if found is not None and not found.has_anything:
                del self._pools[uid]
            for listener in self._listeners:
                listener(uid)


def controller_uid(value: Kind | None) -> str:
    """The uid of the owner that controls an object; empty if there is none."""
    references = meta_of(value).owner_references if value is not None else ()
    return next((found.uid for found in references if found.controller), "")
