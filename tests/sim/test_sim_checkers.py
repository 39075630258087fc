"""Every checker fails when it is shown a history that breaks its promise."""

from __future__ import annotations

from typing import Any

import pytest

from bullpen.sim.checkers import (
    SINGLE_USE,
    BookedBegins,
    CeilingHolds,
    EndedStaysEnded,
    EndsHaveReasons,
    EpochsGrow,
    LeasedMembersStay,
    LeasesAreKept,
    LeasesKeepTheirExporters,
    ObjectsComeToRest,
    OneLeaseEach,
    OneLeasePerLife,
    OnlyEndedAreLabelled,
)
from bullpen.sim.history import History
from bullpen.sim.truth import Checker, Fact, Raw, Truth, Violation
from bullpen.store.base import Change, Verb


def lease(name: str, *, exporter: str = "", uid: str = "", **said: Any) -> Raw:
    status = {**({"exporterRef": {"name": exporter}} if exporter else {}), **said}
    meta = {"name": name, "uid": uid or f"uid-{name}", "namespace": "default"}
    return {
        "apiVersion": "jumpstarter.dev/v1alpha1",
        "kind": "Lease",
        "metadata": meta,
        "spec": {"clientRef": {"name": "alice"}},
        "status": status,
    }


def exporter(name: str, *, owner: str = "", **said: Any) -> Raw:
    meta: Raw = {"name": name, "uid": f"uid-{name}", "namespace": "default", "annotations": {}}
    if owner:
        meta["ownerReferences"] = [{"kind": "ExporterSet", "uid": owner, "name": "pool"}]
    return {"kind": "Exporter", "metadata": meta, "spec": {}, "status": said}


def pool(ceiling: int) -> Raw:
    meta = {"name": "pool", "uid": "uid-pool", "namespace": "default"}
    return {"kind": "ExporterSet", "metadata": meta, "spec": {"maxReplicas": ceiling}}


def fact(old: Raw | None, new: Raw | None, *, at: float = 0.0) -> Fact:
    last = new or old
    assert last is not None
    return Fact(last["kind"], "default", last["metadata"]["name"], old, new, 1, at)


def seen(checker: Checker, *facts: Fact) -> list[str]:
    return [text for found in facts for text in checker.see(found)]


def test_two_leases_on_one_exporter_are_found() -> None:
    one = fact(None, lease("a", exporter="e"))
    two = fact(None, lease("b", exporter="e"))
    assert seen(OneLeaseEach(), one, two) == ["exporter e is held by a and b"]


def test_one_lease_after_the_other_is_fine() -> None:
    held = lease("a", exporter="e")
    ended = lease("a", exporter="e", ended=True)
    facts = fact(None, held), fact(held, ended), fact(None, lease("b", exporter="e"))
    assert not seen(OneLeaseEach(), *facts)


@pytest.mark.parametrize(
    ("after", "said"),
    [
        pytest.param(lease("a", exporter="e"), "goes on", id="it goes on"),
        pytest.param(lease("a", exporter="f", ended=True), "exporterRef", id="it moves"),
    ],
)
def test_an_ended_lease_that_changes_is_found(after: Raw, said: str) -> None:
    before = lease("a", exporter="e", ended=True)
    assert said in seen(EndedStaysEnded(), fact(before, after))[0]


def test_an_open_lease_that_is_labelled_as_ended_is_found() -> None:
    labelled = lease("a", exporter="e")
    labelled["metadata"]["labels"] = {"jumpstarter.dev/lease-ended": "true"}
    assert seen(OnlyEndedAreLabelled(), fact(lease("a", exporter="e"), labelled))
    over = lease("a", exporter="e", ended=True)
    over["metadata"]["labels"] = labelled["metadata"]["labels"]
    assert not seen(OnlyEndedAreLabelled(), fact(lease("a", exporter="e"), over))


@pytest.mark.parametrize(
    ("began", "found"),
    [("2026-01-01T11:59:59Z", True), ("2026-01-01T12:00:00Z", False)],
    ids=["early", "in time"],
)
def test_a_booked_lease_that_begins_early_is_found(began: str, found: bool) -> None:
    active = lease("a", exporter="e", beginTime=began)
    active["spec"]["beginTime"] = "2026-01-01T12:00:00Z"
    assert bool(seen(BookedBegins(), fact(lease("a"), active))) is found


def test_a_lease_that_vanishes_is_found_unless_somebody_deleted_it() -> None:
    gone = fact(lease("a"), None)
    assert seen(LeasesAreKept(lambda uid: False), gone)
    assert not seen(LeasesAreKept(lambda uid: uid == "uid-a"), gone)
    assert not seen(LeasesAreKept(lambda uid: False), fact(lease("a", ended=True), None))


def ended(reason: str) -> Fact:
    said = [{"type": "Ready", "status": "False", "reason": reason}]
    after = lease("a", exporter="e", ended=True, conditions=said)
    return fact(lease("a", exporter="e"), after)


@pytest.mark.parametrize(
    ("reason", "there", "found"),
    [
        pytest.param("ExporterRemoved", exporter("e", leaseUid="uid-a"), True, id="it is its own"),
        pytest.param("ExporterTaken", exporter("e", leaseUid="uid-a"), True, id="nobody took it"),
        pytest.param("ExporterTaken", exporter("e", leaseUid="uid-b"), False, id="it was taken"),
        pytest.param("ExporterRemoved", None, False, id="it is gone"),
        pytest.param("ClientRemoved", {"kind": "Client"}, True, id="its client is there"),
        pytest.param("ClientRemoved", None, False, id="its client is gone"),
        pytest.param("Released", exporter("e", leaseUid="uid-a"), False, id="it was released"),
    ],
)
def test_an_end_for_a_reason_that_is_not_true_is_found(
    reason: str, there: Raw | None, found: bool
) -> None:
    assert bool(seen(EndsHaveReasons(lambda *_: there), ended(reason))) is found


def test_an_epoch_that_falls_is_found() -> None:
    change = fact(exporter("e", leaseEpoch=2), exporter("e", leaseEpoch=1))
    assert seen(EpochsGrow(), change) == ["the epoch of e fell from 2 to 1"]


def test_an_exporter_that_changes_hands_without_being_free_is_found() -> None:
    change = fact(exporter("e", leaseUid="a"), exporter("e", leaseUid="b"))
    assert seen(EpochsGrow(), change)


def test_a_second_lease_of_a_single_use_target_is_found() -> None:
    checker = OneLeasePerLife()
    values = [exporter("e", leaseUid=uid) for uid in ("a", "", "b")]
    for value in values:
        value["metadata"]["annotations"][SINGLE_USE] = "true"
    assert seen(checker, *(fact(None, value) for value in values)) == [
        "exporter e is given a second lease"
    ]


def test_one_member_too_many_is_found() -> None:
    checker = CeilingHolds(lambda: 0.0)
    members = [fact(None, exporter(f"m{i}", owner="uid-pool")) for i in range(2)]
    assert seen(checker, fact(None, pool(1)), *members) == ["m1 makes 2 members of pool, at most 1"]


def test_a_ceiling_that_was_lowered_counts_once_everybody_knows() -> None:
    known = 0.0
    checker = CeilingHolds(lambda: known)
    lowered = fact(pool(2), pool(1), at=10.0)
    one, two, three = (exporter(f"m{i}", owner="uid-pool") for i in range(3))
    facts = fact(None, pool(2)), fact(None, one), lowered
    known = 9.0
    assert not seen(checker, *facts, fact(None, two, at=11.0))
    known = 11.0
    assert seen(checker, fact(None, three, at=13.0))


@pytest.mark.parametrize(
    ("pause", "found"),
    [
        pytest.param(0.01, True, id="as fast as it goes"),
        pytest.param(1.0, False, id="now and then"),
    ],
)
def test_an_object_that_is_written_over_and_over_is_found(pause: float, found: bool) -> None:
    changes = [fact(exporter("e"), exporter("e"), at=n * pause) for n in range(300)]
    assert bool(seen(ObjectsComeToRest(), *changes)) is found


def test_a_leased_member_that_is_removed_is_found_unless_there_is_a_reason() -> None:
    member = exporter("m", owner="uid-pool", leaseRef={"name": "a"})
    held = lease("a", exporter="m")
    gone = fact(member, None)
    assert seen(LeasedMembersStay(lambda *_: held, lambda _: False), gone)
    assert not seen(LeasedMembersStay(lambda *_: held, lambda _: True), gone)
    assert not seen(LeasedMembersStay(lambda *_: None, lambda _: False), gone)


def test_an_exporter_that_is_taken_from_an_active_lease_is_seen() -> None:
    held = exporter("e", leaseRef={"name": "a"}, leaseUid="uid-a")
    freed, given = fact(held, exporter("e")), fact(held, exporter("e", leaseUid="uid-b"))
    active = LeasesKeepTheirExporters(lambda *_: lease("a", exporter="e"))
    assert seen(active, freed)
    assert seen(active, given)
    assert not seen(active, fact(held, held))
    assert not seen(active, fact(held, None))


@pytest.mark.parametrize(
    "found",
    [
        None,
        lease("a", exporter="e", ended=True),
        lease("a", exporter="another"),
        lease("a", exporter="e", uid="uid-another"),
    ],
)
def test_an_exporter_that_no_active_lease_has_may_be_freed(found: Raw | None) -> None:
    freed = fact(exporter("e", leaseRef={"name": "a"}, leaseUid="uid-a"), exporter("e"))
    assert not seen(LeasesKeepTheirExporters(lambda *_: found), freed)


class Model:
    """A history over a truth that the test writes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.broken: list[Violation] = []
        self.truth = Truth(lambda: self.now, self.broken.append)
        self.behind_since: float | None = None
        """Since when a process has known nothing new."""

        self.history = History(
            self.truth, lambda: self.now, self.broken.append, last_seen=self.last_seen, slack=1.0
        )

    def last_seen(self) -> float:
        return self.now if self.behind_since is None else self.behind_since

    def write(self, value: Raw) -> None:
        where = (value["kind"], "default", value["metadata"]["name"])
        old = self.truth.objects.get(where)
        self.truth.objects[where] = value
        self.history.committed(Fact(*where, old, value, 1, self.now))


def token(lease: str, epoch: int = 1) -> str:
    from datetime import UTC, datetime, timedelta

    from bullpen.identity.subjects import Role
    from bullpen.identity.tokens import Ticket, Tickets

    now = datetime(2026, 1, 1, tzinfo=UTC)
    ticket = Ticket(
        stream="s",
        lease=lease,
        epoch=epoch,
        role=Role.CLIENT,
        expires=now + timedelta(minutes=1),
    )
    return Tickets(b"k" * 32).mint(ticket, now=now)


def test_whose_a_lease_was_is_known_when_it_is_gone() -> None:
    """Somebody it was handed to may have released it a moment before it was deleted."""
    model = Model()
    held = lease("a", exporter="e")
    model.write(held)
    handed = {**held, "spec": {"clientRef": {"name": "bob"}}}
    model.write(handed)
    model.history.committed(fact(handed, None))
    assert model.history.holder("default", "a") == "bob"
    assert model.history.holder("default", "b") == ""


def test_an_acknowledged_lease_that_is_not_on_disk_is_found() -> None:
    model = Model()
    model.history.created("default", "a", "uid-a")
    assert "not on disk" in model.broken[0].message


def test_an_exporter_that_hears_of_an_end_that_is_none_is_found() -> None:
    model = Model()
    model.write(exporter("e", leaseRef={"name": "a"}, leaseUid="uid-a"))
    for other in (
        lease("a", exporter="e", ended=True),
        lease("a", exporter="e", uid="uid-another"),
    ):
        model.write(other)
        model.history.heard_end("default", "e", "a", "uid-a")
    assert not model.broken
    model.write(lease("a", exporter="e"))
    model.history.heard_end("default", "e", "a", "uid-a")
    assert "is over, which goes on" in model.broken[0].message


def test_a_forgotten_release_is_found() -> None:
    model = Model()
    model.write(lease("a", exporter="e"))
    model.history.created("default", "a", "uid-a")
    model.history.released("default", "a")
    assert "release of a is lost" in model.broken[0].message


def test_a_token_for_an_ended_lease_is_found_once_everybody_must_know() -> None:
    model = Model()
    model.write(lease("a", exporter="e", epoch=1))
    model.history.minted("default", "alice", "a", token("uid-a"))
    model.write(lease("a", exporter="e", epoch=1, ended=True))
    model.now = 0.5
    model.history.minted("default", "alice", "a", token("uid-a"))
    assert not model.broken
    model.now = 2.0
    model.history.minted("default", "alice", "a", token("uid-a"))
    assert "not active" in model.broken[0].message


def test_a_token_of_a_process_that_hung_counts_from_what_it_knew() -> None:
    model = Model()
    model.write(lease("a", exporter="e", epoch=1, ended=True))
    model.now, model.behind_since = 9.0, 0.5
    model.history.minted("default", "alice", "a", token("uid-a"))
    assert not model.broken
    model.behind_since = 2.0
    model.history.minted("default", "alice", "a", token("uid-a"))
    assert "not active" in model.broken[0].message


def test_a_token_for_somebody_else_is_found() -> None:
    model = Model()
    model.write(lease("a", exporter="e", epoch=1, clientRef={"name": "bob"}))
    model.history.minted("default", "alice", "a", token("uid-a"))
    assert "bob's" in model.broken[0].message


def test_a_stream_that_is_joined_twice_is_found() -> None:
    model = Model()
    model.history.joined("s")
    assert not model.broken
    model.history.joined("s")
    assert model.broken


def test_a_stream_that_outlives_its_lease_is_found() -> None:
    model = Model()
    model.write(lease("a", exporter="e", ended=True))
    model.now = 3.0
    model.history.streams(["uid-a"])
    assert model.broken


def test_a_router_has_time_to_learn_of_an_end_once_the_api_is_back() -> None:
    model = Model()
    model.write(lease("a", exporter="e", ended=True))
    model.now = 3.0
    model.history.streams(["uid-a"], reachable_since=2.0)
    assert not model.broken
    model.now = 5.0
    model.history.streams(["uid-a"], reachable_since=2.0)
    assert model.broken


def test_revisions_that_do_not_grow_are_found() -> None:
    model = Model()
    value = b'{"kind":"Lease","metadata":{"name":"a"},"spec":{}}'
    change = Change(1, "k", Verb.CREATED, value, None)
    model.truth.committed([change])
    model.truth.committed([change])
    assert model.broken[0].promise == "revisions only grow"
