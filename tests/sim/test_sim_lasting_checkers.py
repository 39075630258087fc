"""Every checker of lasting targets fails when it is shown a history that breaks its promise."""

from __future__ import annotations

from typing import Any

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


def test_a_disk_with_content_that_is_deleted_is_found() -> None:
    full, empty = (owned("VirtualDisk", "d", capacity=text) for text in ("8Mi", ""))
    ending = owned("VirtualDisk", "d", ending=True, capacity="8Mi")
    for after in (ending, None):
        assert seen(DisksAreKept(lambda uid: False), fact(full, after))
        assert not seen(DisksAreKept(lambda uid: uid == "pool"), fact(full, after))
    assert not seen(DisksAreKept(lambda uid: False), fact(empty, None), fact(ending, None))


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
