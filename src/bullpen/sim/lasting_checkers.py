"""Promises of pools of lasting targets, checked on every committed change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from bullpen.api.kinds.virtualtargetpool import DISK_TEMPLATE, FREE_SINCE, POOL_UID
from bullpen.kit import times
from bullpen.kit.durations import parse
from bullpen.sim.checkers import believed, removed
from bullpen.sim.truth import Fact, Raw, status, uid_of

SAME_CLOCK = 0.001
"""Seconds within which two readings of a clock are of one that was not set."""

UNUSABLE = ("Failed", "Lost")
"""Phases of disks that take no place of ``keep``."""


class CountHolds:
    """No member is created that would make more of them than the count of the pool."""

    promise = "a pool of lasting targets does not exceed its count"

    def __init__(self, known: Callable[[], float]) -> None:
        self._known = known
        """The time up to which all processes know what happened."""

        self._counts: dict[str, list[tuple[float, int]]] = {}
        self._leaving: dict[str, set[str]] = {}
        self._members: dict[str, dict[str, bool]] = {}
        """By pool, the uids of its members, and whether they are being deleted."""

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind == "VirtualTargetPool" and fact.new is not None:
            spec, uid = fact.new["spec"], uid_of(fact.new)
            self._counts.setdefault(uid, []).append((fact.at, spec["replicas"]))
            self._leaving[uid] = {each["uid"] for each in spec.get("removals") or ()}
        pool = _controller(fact.last)
        if fact.kind != "VirtualTarget" or pool not in self._counts:
            return
        members = self._members.setdefault(pool, {})
        if fact.new is None:
            members.pop(uid_of(fact.old), None)
            return
        born = uid_of(fact.new) not in members
        members[uid_of(fact.new)] = bool(fact.new["metadata"].get("deletionTimestamp"))
        out = self._leaving[pool]
        live = sum(not ending and uid not in out for uid, ending in members.items())
        most = max(believed(self._counts[pool], self._known()))
        if born and live > most:
            yield f"{fact.name} makes {live} members, the count is {most}"


class OneTargetPerDisk:
    """A lasting disk is open in at most one target."""

    promise = "a disk is on one target at most"

    def __init__(self) -> None:
        self._users: dict[tuple[str, str], dict[str, str]] = {}
        """By namespace and disk, the uids and names of the targets that have it open."""

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind != "VirtualTarget":
            return
        uid = uid_of(fact.last)
        for disk in status(fact.old).get("disks") or ():
            self._users.get((fact.namespace, disk), {}).pop(uid, None)
        for disk in status(fact.new).get("disks") or ():
            users = self._users.setdefault((fact.namespace, disk), {})
            users[uid] = fact.name
            if len(users) > 1:
                yield f"{disk} is open in {' and '.join(sorted(users.values()))}"


class DisksAreKept:
    """A disk with content is deleted only with its member, or as its template says."""

    promise = "a disk is deleted by its rule only"

    def __init__(
        self,
        deleted: Callable[[str], bool],
        known: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        """``now``: what the clocks of the lab show."""
        self._deleted = deleted
        """Whether an operator has deleted the object with this uid."""

        self._known = known
        self._now = now
        self._ahead: list[tuple[float, float]] = []
        """By how much the clocks are ahead of the time of the run, since when."""

        self._specs: dict[str, list[tuple[float, Raw]]] = {}
        """By the uid of a pool."""

        self._targets: dict[str, Raw] = {}
        self._named: dict[tuple[str, str], float] = {}
        """By the uid of a target and the name of a disk, since when it names the disk."""

        self._free: dict[str, tuple[Raw, float]] = {}
        """By the uid of a disk, the disk as it was last free, and when that ended."""

    def see(self, fact: Fact) -> Iterator[str]:
        ahead = self._now().timestamp() - fact.at
        if not self._ahead or abs(ahead - self._ahead[-1][1]) > SAME_CLOCK:
            self._ahead.append((fact.at, ahead))
        if fact.kind == "VirtualTargetPool" and fact.new is not None:
            self._specs.setdefault(uid_of(fact.new), []).append((fact.at, fact.new["spec"]))
        if fact.kind == "VirtualTarget":
            self._note_target(fact)
        if fact.kind == "VirtualDisk":
            if removed(fact) and fact.old is not None and status(fact.old).get("capacity"):
                yield from self._judge(fact, fact.old)
            self._note_disk(fact)

    def _note_target(self, fact: Fact) -> None:
        uid = uid_of(fact.last)
        self._targets.pop(uid, None)
        disks = [] if fact.new is None or _ends(fact.new) else fact.new["spec"].get("disks") or []
        if fact.new is not None and not _ends(fact.new):
            self._targets[uid] = fact.new
        names = {disk["virtualDisk"] for disk in disks if "virtualDisk" in disk}
        for key in [key for key in self._named if key[0] == uid and key[1] not in names]:
            del self._named[key]
        for name in names:
            self._named.setdefault((uid, name), fact.at)

    def _note_disk(self, fact: Fact) -> None:
        uid = uid_of(fact.last)
        if fact.new is not None and not _ends(fact.new) and _free_since(fact.new):
            self._free[uid] = fact.new, float("inf")
        elif uid in self._free and self._free[uid][1] == float("inf"):
            self._free[uid] = self._free[uid][0], fact.at

    def _judge(self, fact: Fact, disk: Raw) -> Iterator[str]:
        owner = _controller(disk)
        if self._deleted(uid_of(disk)) or self._deleted(owner):
            return
        known = self._known()
        of_pool = owner in self._specs
        if not of_pool and owner not in self._targets:
            return
        for (uid, name), since in self._named.items():
            if name == fact.name and since <= known:
                target = self._targets[uid]["metadata"]["name"]
                yield f"disk {fact.name} was deleted, and {target} names it"
        if status(disk).get("attachedTo"):
            yield f"disk {fact.name} was deleted, and {status(disk)['attachedTo']} has it"
        specs = believed(self._specs[owner if of_pool else _pool(disk)], known)
        if of_pool and not any(self._is_due(spec, disk, fact.at, known) for spec in specs):
            yield f"disk {fact.name} was deleted, and its template retains it"
        if not of_pool and all(_template_in(spec, disk) is not None for spec in specs):
            yield f"disk {fact.name} was deleted, and its member is there"

    def _is_due(self, spec: Raw, disk: Raw, at: float, known: float) -> bool:
        template = _template_in(spec, disk)
        reclaim = {} if template is None else template.get("reclaim") or {}
        if template is None or reclaim.get("onScaleDown") != "Retain":
            return True
        since = _free_since(disk)
        if not reclaim.get("ttl") or not since:
            return False
        latest = at + max(believed(self._ahead, known))
        if latest - times.parse(since).timestamp() <= parse(reclaim["ttl"]).total_seconds():
            return False
        fresher = [
            other
            for other, until in self._free.values()
            if until > known
            and uid_of(other) != uid_of(disk)
            and _template(other) == _template(disk)
            and _free_since(other) >= since
        ]
        return len(fresher) >= reclaim.get("keep", 0) or status(disk).get("phase") in UNUSABLE


def _template_in(spec: Raw, disk: Raw) -> Raw | None:
    """The template of a disk in the spec of its pool; None if it was removed."""
    found: Iterable[Raw] = spec.get("virtualDiskTemplates") or ()
    return next((each for each in found if each["name"] == _template(disk)), None)


def _pool(disk: Raw) -> str:
    return str((disk["metadata"].get("labels") or {}).get(POOL_UID, ""))


def _template(disk: Raw) -> str:
    return str((disk["metadata"].get("labels") or {}).get(DISK_TEMPLATE, ""))


def _free_since(disk: Raw) -> str:
    return str((disk["metadata"].get("annotations") or {}).get(FREE_SINCE, ""))


def _ends(document: Raw) -> bool:
    return bool(document["metadata"].get("deletionTimestamp"))


class RemovedOnce:
    """A removal by name lowers the count by one, once, and is on record until it is done."""

    promise = "a removal by name happens exactly once"

    def __init__(self) -> None:
        self._recorded: set[str] = set()
        self._present: set[str] = set()
        """Uids of targets that exist."""

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind == "VirtualTarget":
            if fact.new is None:
                self._present.discard(uid_of(fact.old))
            else:
                self._present.add(uid_of(fact.new))
        if fact.kind != "VirtualTargetPool" or fact.old is None or fact.new is None:
            return
        before, after = _removals(fact.old), _removals(fact.new)
        added, dropped = after.keys() - before.keys(), before.keys() - after.keys()
        fell = fact.old["spec"]["replicas"] - fact.new["spec"]["replicas"]
        if added and fell != min(len(added), fact.old["spec"]["replicas"]):
            yield f"the count fell by {fell} when {len(added)} members were removed by name"
        for uid in sorted(added & self._recorded):
            yield f"{after[uid]} was removed by name twice"
        for uid in sorted(dropped & self._present):
            yield f"the removal of {before[uid]} was forgotten before it was gone"
        self._recorded |= added


def _removals(pool: Raw) -> dict[str, str]:
    return {each["uid"]: each["name"] for each in pool["spec"].get("removals") or ()}


def _controller(document: Raw) -> str:
    owners = document["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")
