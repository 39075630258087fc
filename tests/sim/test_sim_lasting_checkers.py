"""Every checker of lasting targets fails when it is shown a history that breaks its promise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bullpen.api.kinds.virtualtargetpool import DISK_TEMPLATE, FREE_SINCE, POOL_UID
from bullpen.kit import times
from bullpen.sim.lasting_checkers import CountHolds, DisksAreKept, OneTargetPerDisk, RemovedOnce
from bullpen.sim.truth import Checker, Fact, Raw

OWNER = {"kind": "VirtualTargetPool", "name": "p", "uid": "pool", "controller": True}


def pool(replicas: int, *removals: str) -> Raw:
    gone = [{"name": name, "uid": f"uid-{name}"} for name in removals]
    meta = {"name": "p", "uid": "pool", "namespace": "default"}
    return {
        "kind": "VirtualTargetPool",
        "metadata": meta,
        "spec": {"replicas": replicas, "removals": gone},
    }


def owned(kind: str, name: str, *, ending: bool = False, **said: Any) -> Raw:
    meta: Raw = {"name": name, "uid": f"uid-{name}", "namespace": "default"}
    meta["ownerReferences"] = [OWNER]
    if ending:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"kind": kind, "metadata": meta, "spec": {}, "status": said}


def target(name: str, **more: Any) -> Raw:
    return owned("VirtualTarget", name, **more)


def fact(old: Raw | None, new: Raw | None, *, at: float = 0.0) -> Fact:
    last = new or old
    assert last is not None
    return Fact(last["kind"], "default", last["metadata"]["name"], old, new, 1, at)


def seen(checker: Checker, *facts: Fact) -> list[str]:
    return [text for found in facts for text in checker.see(found)]


def test_a_member_above_the_count_is_found() -> None:
    members = [fact(None, target(name)) for name in ("a", "b")]
    said = seen(CountHolds(lambda: 9.0), fact(None, pool(1)), *members)
    assert said == ["b makes 2 members, the count is 1"]


def test_members_that_leave_do_not_count() -> None:
    facts = (
        fact(None, pool(2)),
        fact(None, target("a")),
        fact(target("a"), target("a", ending=True)),
        fact(None, target("b")),
        fact(None, target("c")),
        fact(pool(2), pool(1, "b")),
        fact(target("c"), None),
        fact(None, target("d")),
    )
    assert not seen(CountHolds(lambda: 9.0), *facts)


def test_a_lowered_count_may_not_be_known_yet() -> None:
    lowered = fact(pool(2), pool(1), at=5.0)
    born = fact(None, target("b"), at=6.0)
    facts = (fact(None, pool(2)), fact(None, target("a")), lowered, born)
    assert not seen(CountHolds(lambda: 4.0), *facts)
    assert seen(CountHolds(lambda: 6.0), *facts)


def test_a_disk_that_is_open_in_two_targets_is_found() -> None:
    one, two = target("a", disks=["d"]), target("b", disks=["d"])
    assert seen(OneTargetPerDisk(), fact(None, one), fact(None, two)) == ["d is open in a and b"]
    handed_over = (fact(None, one), fact(one, target("a")), fact(None, two))
    assert not seen(OneTargetPerDisk(), *handed_over)


START = datetime(2026, 1, 1, tzinfo=UTC)


def kept(*, deleted: str = "", known: float = 1e9, seconds: float = 0.0) -> DisksAreKept:
    """The checker, in a lab whose clocks show so many seconds after the start."""
    return DisksAreKept(deleted.__eq__, lambda: known, lambda: START + timedelta(seconds=seconds))


def with_disks(**reclaim: Any) -> Fact:
    templates = [{"name": "root", "reclaim": {"onScaleDown": "Retain", **reclaim}}]
    return fact(None, {**pool(1), "spec": {"replicas": 1, "virtualDiskTemplates": templates}})


def disk(name: str, *, free: int | None = None, owner: Raw = OWNER, **said: Any) -> Raw:
    made = owned("VirtualDisk", name, **{"capacity": "8Mi", **said})
    made["metadata"]["ownerReferences"] = [owner]
    made["metadata"]["labels"] = {DISK_TEMPLATE: "root", POOL_UID: "pool"}
    since = {} if free is None else {FREE_SINCE: times.text(START + timedelta(seconds=free))}
    return {**made, "metadata": {**made["metadata"], "annotations": since}}


def ends(found: Raw) -> Fact:
    meta = {**found["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    return fact(found, {**found, "metadata": meta})


def test_a_disk_that_its_template_retains_is_not_deleted() -> None:
    full = disk("d", free=0)
    for gone in (ends(full), fact(full, None)):
        said = seen(kept(), with_disks(), gone)
        assert said == ["disk d was deleted, and its template retains it"]
        for uid in ("pool", "uid-d"):
            assert not seen(kept(deleted=uid), with_disks(), gone)
    assert not seen(kept(), with_disks(), fact(disk("d", capacity=""), None))
    already = ends(full).new
    assert not seen(kept(), with_disks(), fact(already, None))


def test_a_disk_is_deleted_when_its_template_deletes_or_is_removed() -> None:
    for rule in (with_disks(onScaleDown="Delete"), fact(None, pool(1))):
        assert not seen(kept(), rule, ends(disk("d")))
        held = ends(disk("d", attachedTo="vm"))
        assert seen(kept(), rule, held) == ["disk d was deleted, and vm has it"]


def test_a_disk_is_not_deleted_while_a_member_names_it() -> None:
    member = target("vm")
    member["spec"] = {"disks": [{"virtualDisk": "d"}]}
    rule = with_disks(onScaleDown="Delete")
    said = seen(kept(), rule, fact(None, member), ends(disk("d")))
    assert said == ["disk d was deleted, and vm names it"]
    assert not seen(kept(known=-1.0), rule, fact(None, member), ends(disk("d")))
    assert not seen(kept(), rule, fact(None, member), fact(member, target("vm")), ends(disk("d")))


def test_a_disk_of_a_member_goes_with_it_and_not_before() -> None:
    owner = {"kind": "VirtualTarget", "name": "vm", "uid": "uid-vm", "controller": True}
    own = ends(disk("d", owner=owner))
    born, rule = fact(None, target("vm")), with_disks(onScaleDown="Delete")
    assert seen(kept(), rule, born, own) == ["disk d was deleted, and its member is there"]
    assert not seen(kept(), rule, born, fact(target("vm"), target("vm", ending=True)), own)
    removed = fact(None, pool(1))
    assert not seen(kept(), removed, born, own), "its template was removed"
    held = ends(disk("d", owner=owner, attachedTo="vm"))
    assert seen(kept(), removed, born, held) == ["disk d was deleted, and vm has it"]


@pytest.mark.parametrize(
    ("seconds", "keep", "others", "found"),
    [
        (9, 0, (), True),
        (11, 0, (), False),
        (11, 1, (), True),
        (11, 1, (5,), False),
        (11, 1, (-5,), True),
    ],
    ids=["too early", "due", "kept", "a fresher one is kept", "an older one is not"],
)
def test_a_free_disk_is_deleted_after_its_ttl_unless_it_is_kept(
    seconds: float, keep: int, others: tuple[int, ...], found: bool
) -> None:
    facts = [fact(None, disk(f"o{n}", free=since)) for n, since in enumerate(others)]
    rule, old = with_disks(ttl="10s", keep=keep), disk("d", free=0)
    said = seen(kept(seconds=seconds), rule, fact(None, old), *facts, ends(old))
    assert bool(said) is found


def test_a_removal_that_counts_twice_or_not_at_all_is_found() -> None:
    good = fact(pool(3), pool(2, "a"))
    assert not seen(RemovedOnce(), good, fact(pool(2, "a"), pool(2)))
    for after in (pool(3, "a"), pool(1, "a")):
        assert "the count fell by" in seen(RemovedOnce(), fact(pool(3), after))[0]
    again = fact(pool(2), pool(1, "a"))
    said = seen(RemovedOnce(), good, fact(pool(2, "a"), pool(2)), again)
    assert said == ["a was removed by name twice"]


def test_a_removal_that_is_forgotten_too_early_is_found() -> None:
    facts = (
        fact(None, target("a")),
        fact(pool(3), pool(2, "a")),
        fact(pool(2, "a"), pool(2)),
    )
    assert seen(RemovedOnce(), *facts) == ["the removal of a was forgotten before it was gone"]
    assert not seen(RemovedOnce(), facts[0], facts[1], fact(target("a"), None), facts[2])
