"""Promises of pools of lasting targets, checked on every committed change."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bullpen.sim.checkers import believed, removed
from bullpen.sim.truth import Fact, Raw, status, uid_of


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
    """A disk with content is deleted only by its reclaim rule, and none is ever due here."""

    promise = "a disk is deleted by its rule only"

    def __init__(self, deleted: Callable[[str], bool]) -> None:
        self._deleted = deleted
        """Whether an operator has deleted the object with this uid."""

    def see(self, fact: Fact) -> Iterator[str]:
        if fact.kind != "VirtualDisk" or not removed(fact):
            return
        assert fact.old is not None
        asked = self._deleted(uid_of(fact.old)) or self._deleted(_controller(fact.old))
        if status(fact.old).get("capacity") and not asked:
            yield f"disk {fact.name} was deleted, and its template retains it"


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
