"""The members and disks of a pool of lasting targets, indexed so that a pass costs what changed.

A usual member is ready, has the current template in effect and disks that are as they should
be: only an edit, a lease or a failure changes it. Usual members are counted; the others, and
the disks that no usual member has, are looked at one by one. Every decision must be the same
as if all of them had been looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bullpen.api.kinds.virtualdisk import VirtualDisk
from bullpen.api.kinds.virtualtargetpool import (
    DISK_TEMPLATE,
    FREE_SINCE,
    DiskTemplate,
    OnScaleDown,
    VirtualTargetPool,
)
from bullpen.core.pools import member_names
from bullpen.core.pools.lasting_disks import owner_of
from bullpen.core.pools.lasting_pool import LastingMember, template_hash
from bullpen.core.targets import disks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expected:
    """What a usual member has, by the spec of its pool."""

    pool: VirtualTargetPool
    hash: str
    templates: Mapping[str, DiskTemplate]
    leaving: frozenset[str]

    @classmethod
    def of(cls, pool: VirtualTargetPool) -> _Expected:
        return cls(
            pool=pool,
            hash=template_hash(pool),
            templates={each.name: each for each in pool.spec.virtual_disk_templates},
            leaving=frozenset(removal.uid for removal in pool.spec.removals),
        )

    def same_template(self, other: _Expected) -> bool:
        same_pool = self.pool.metadata.uid == other.pool.metadata.uid
        return same_pool and (self.hash, self.templates) == (other.hash, other.templates)


class LastingMembers:
    """Members and disks of one pool. Its owner updates it; decisions only read it."""

    def __init__(self) -> None:
        self._members: dict[str, LastingMember] = {}
        self._unusual: dict[str, LastingMember] = {}
        self._names: dict[str, str] = {}
        """Names of members by their uids."""

        self._disks: dict[str, VirtualDisk] = {}
        self._loose: dict[str, VirtualDisk] = {}
        self._users: dict[str, set[str]] = {}
        """By disk, the members that name it or may have it open."""

        self._changed: dict[str, None] = {}
        """Members to evaluate again."""

        self._expected: _Expected | None = None
        self._version: tuple[str, int] = "", -1
        self.usual_leased = 0
        self.highest = 0
        """One more than the highest number in the name of a member, ever."""

        self.highest_disk = 0
        self.known_below = 0
        """Every member with a lower number was seen, or the API confirmed that it is gone."""

        self._known_above: set[int] = set()

    def knows_below(self, number: int) -> None:
        """The API was asked about all members with a lower number."""
        self.known_below = max(self.known_below, number)
        self._advance()

    def _saw(self, number: int) -> None:
        if number >= self.known_below:
            self._known_above.add(number)
            self._advance()

    def _advance(self) -> None:
        while self.known_below in self._known_above:
            self.known_below += 1
        self._known_above = {each for each in self._known_above if each > self.known_below}

    def put(self, member: LastingMember) -> None:
        """Add a member, or replace its previous state."""
        self._forget(member.name)
        self._members[member.name] = member
        self._names[member.uid] = member.name
        self._saw(member_names.tail_number(member.name))
        self._changed[member.name] = None
        for disk in _disks_of(member):
            self._users.setdefault(disk, set()).add(member.name)
            self._touch(disk)

    def remove(self, name: str) -> None:
        self._forget(name)
        self._changed[name] = None

    def _forget(self, name: str) -> None:
        member = self._members.pop(name, None)
        if member is None:
            return
        self._names.pop(member.uid, None)
        if self._unusual.pop(name, None) is None and name not in self._changed:
            self.usual_leased -= member.leased
        for disk in _disks_of(member):
            users = self._users.get(disk, set())
            users.discard(name)
            if not users:
                self._users.pop(disk, None)
            self._touch(disk)

    def put_disk(self, disk: VirtualDisk) -> None:
        name = disk.metadata.name
        self._disks[name] = disk
        self.highest_disk = max(self.highest_disk, member_names.tail_number(name) + 1)
        self._touch(name)

    def remove_disk(self, name: str) -> None:
        self._disks.pop(name, None)
        self._touch(name)

    def _touch(self, disk: str) -> None:
        """A disk or its users changed: count it as loose until its users are looked at."""
        found = self._disks.get(disk)
        if found is None:
            self._loose.pop(disk, None)
        else:
            self._loose[disk] = found
        for user in self._users.get(disk, ()):
            self._reconsider(user)

    def _reconsider(self, name: str) -> None:
        if name in self._changed:
            return
        member = self._members[name]
        if name not in self._unusual:
            self.usual_leased -= member.leased
        self._changed[name] = None

    def settle(self, pool: VirtualTargetPool) -> None:
        """Evaluate what changed; everything, after an edit of the pool."""
        expected = self._renewed(pool)
        for name in self._changed:
            self._unusual.pop(name, None)
            member = self._members.get(name)
            if member is None:
                continue
            self.highest = max(self.highest, member_names.tail_number(name) + 1)
            if self._is_usual(member, expected):
                self.usual_leased += member.leased
                for disk in _disks_of(member):
                    self._loose.pop(disk, None)
            else:
                self._unusual[name] = member
                for disk in _disks_of(member):
                    if disk in self._disks:
                        self._loose[disk] = self._disks[disk]
        self._changed.clear()

    def _renewed(self, pool: VirtualTargetPool) -> _Expected:
        """What a usual member has now; members that an edit of the pool concerns are evaluated."""
        version = pool.metadata.uid, pool.metadata.generation
        before = self._expected
        if before is not None and version == self._version:
            return before
        self._version = version
        self._expected = expected = _Expected.of(pool)
        if before is not None and before.same_template(expected):
            moved = before.leaving ^ expected.leaving
            concerned = [self._names[uid] for uid in moved if uid in self._names]
        else:
            concerned = list(self._members)
        for name in concerned:
            self._reconsider(name)
        return expected

    def _is_usual(self, member: LastingMember, expected: _Expected) -> bool:
        if member.ending or member.uid in expected.leaving or not member.ready:
            return False
        if not member.effective(expected.hash):
            return False
        return self._has_its_disks(member, expected)

    def _has_its_disks(self, member: LastingMember, expected: _Expected) -> bool:
        """Whether it has one disk of each template, in place, and nothing is due for them."""
        target = member.target
        named, wanted = target.spec.disks, expected.pool.spec.template.spec.disks
        if len(named) != len(wanted) or not set(target.status.disks) <= set(disks.names(target)):
            return False
        for found, place in zip(named, wanted, strict=True):
            if not place.virtual_disk:
                if found != place:
                    return False
                continue
            template = expected.templates.get(place.virtual_disk)
            disk = self._disks.get(found.virtual_disk)
            if template is None or disk is None or not found.virtual_disk:
                return False
            if not self._is_settled(disk, member.name, template, expected.pool):
                return False
        return True

    def _is_settled(
        self, disk: VirtualDisk, member: str, template: DiskTemplate, pool: VirtualTargetPool
    ) -> bool:
        """Whether nothing is to be done about a disk, which is this member's alone."""
        meta = disk.metadata
        if meta.labels.get(DISK_TEMPLATE) != template.name or meta.deletion_timestamp is not None:
            return False
        retained = template.reclaim.on_scale_down is OnScaleDown.RETAIN
        if owner_of(disk, pool) != ("" if retained else member) or FREE_SINCE in meta.annotations:
            return False
        wanted = disks.bytes_of(template.spec.size)
        size = disks.bytes_of(disk.spec.size) or disks.bytes_of(disk.status.capacity)
        grows = wanted is not None and size is not None and size < wanted
        return not grows and self._users.get(meta.name) == {member}

    @property
    def usual(self) -> int:
        return len(self._members) - len(self._unusual)

    @property
    def unusual(self) -> tuple[LastingMember, ...]:
        return tuple(self._unusual[name] for name in sorted(self._unusual))

    def ordinary(self) -> Iterator[LastingMember]:
        """The usual members, one by one. There may be thousands."""
        return (m for name, m in self._members.items() if name not in self._unusual)

    @property
    def loose_disks(self) -> dict[str, VirtualDisk]:
        """The disks that no usual member has, by name."""
        return dict(self._loose)

    @property
    def has_anything(self) -> bool:
        return bool(self._members or self._disks or self._changed)

    def __len__(self) -> int:
        return len(self._members)


def _disks_of(member: LastingMember) -> tuple[str, ...]:
    """The disks that a member names or may have open."""
    return tuple(dict.fromkeys((*disks.names(member.target), *member.target.status.disks)))
