"""Plans of writes, what a crash leaves of them, and how the next pass repairs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product

import pytest

from bullpen.api.kinds.exporter import Exporter, ExporterStatus
from bullpen.api.kinds.lease import Lease, LeaseSpec, LeaseStatus
from bullpen.api.meta import LocalObjectReference, ObjectMeta
from bullpen.core.leases import assignment
from bullpen.core.leases.access import Approval
from bullpen.core.leases.assignment import (
    Mend,
    Part,
    Partner,
    Plan,
    Write,
    mend_exporter,
    mend_lease,
)
from bullpen.kit.clock import EPOCH


def exporter(held_by: str = "", *, uid: str = "u1", epoch: int = 3) -> Exporter:
    ref = LocalObjectReference(name=held_by) if held_by else None
    status = ExporterStatus(lease_ref=ref, lease_uid=uid if held_by else "", lease_epoch=epoch)
    return Exporter(metadata=ObjectMeta(name="e1", namespace="lab"), status=status)


def lease(on: str = "", *, uid: str = "u1", epoch: int = 3, ended: bool = False) -> Lease:
    ref = LocalObjectReference(name=on) if on else None
    return Lease(
        metadata=ObjectMeta(name="l1", namespace="lab", uid=uid),
        spec=LeaseSpec(client_ref=LocalObjectReference(name="alice")),
        status=LeaseStatus(exporter_ref=ref, epoch=epoch if on else 0, ended=ended),
    )


@pytest.mark.parametrize(
    ("given_exporter", "given_lease", "expected"),
    [
        pytest.param(exporter(), None, Mend.NOTHING, id="no lease holds it"),
        pytest.param(exporter("l1"), lease("e1"), Mend.NOTHING, id="both halves are written"),
        pytest.param(exporter("l1"), lease(), Mend.FINISH, id="a crash left the lease's half out"),
        pytest.param(exporter("l1"), None, Mend.FREE, id="its lease was deleted"),
        pytest.param(exporter("l1"), lease("e1", ended=True), Mend.FREE, id="its lease is over"),
        pytest.param(exporter("l1"), lease("e2"), Mend.FREE, id="its lease has another one"),
        pytest.param(
            exporter("l1"), lease(uid="u2"), Mend.FREE, id="a new lease only shares the name"
        ),
        pytest.param(
            exporter("l1"),
            lease("e1", uid="u2"),
            Mend.FREE,
            id="a new lease of that name claims it",
        ),
    ],
)
def test_mend_exporter(given_exporter: Exporter, given_lease: Lease | None, expected: Mend) -> None:
    assert mend_exporter(given_exporter, given_lease) is expected


@pytest.mark.parametrize(
    ("given_lease", "given_exporter", "expected"),
    [
        pytest.param(lease("e1"), exporter("l1"), Mend.NOTHING, id="both halves are written"),
        pytest.param(lease("e1"), exporter(), Mend.RETAKE, id="the exporter forgot it"),
        pytest.param(lease("e1"), None, Mend.END_REMOVED, id="the exporter is gone"),
        pytest.param(
            lease("e1"), exporter(epoch=0), Mend.END_REMOVED, id="the exporter was made anew"
        ),
        pytest.param(
            lease("e1"), exporter(epoch=4), Mend.END_REMOVED, id="other leases held it in between"
        ),
        pytest.param(lease("e1"), exporter("l2"), Mend.END_TAKEN, id="another lease holds it"),
        pytest.param(lease("e1"), exporter("l1", uid="u2"), Mend.END_TAKEN, id="a namesake has it"),
    ],
)
def test_mend_lease(given_lease: Lease, given_exporter: Exporter | None, expected: Mend) -> None:
    assert mend_lease(given_lease, given_exporter) is expected


# Several exporters for the leases of one request


def test_an_exporter_that_was_taken_by_a_deleted_namesake_does_not_complete_an_assignment() -> None:
    partner = Partner(lease=lease(uid="new"), exporter=exporter("l1", uid="old"))
    assert mend_exporter(exporter("l1"), lease(), (partner,)) is Mend.FREE


class Refused(Exception):
    """The object changed since it was read."""


@dataclass
class Stored:
    """The stored exporters and leases, with compare-and-set on their resource versions."""

    exporters: dict[str, Exporter] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)

    def write(self, value: Write) -> Write:
        objects = self.exporters if isinstance(value, Exporter) else self.leases
        name, version = value.metadata.name, value.metadata.resource_version
        if name not in objects or objects[name].metadata.resource_version != version:
            raise Refused
        newer = replace(value.metadata, resource_version=str(int(version) + 1))
        written = replace(value, metadata=newer)
        objects[name] = written  # type: ignore[assignment]
        return written

    def perform(self, plan: Plan) -> None:
        """What the controller does with a plan."""
        written: list[Write] = []
        try:
            written.extend(map(self.write, plan.writes))
        except Refused:
            for value in assignment.undo(plan, written).writes:
                self.write(value)

    def holder(self, lease: str) -> Exporter | None:
        """The exporter whose leaseRef names the lease."""
        found = [e for e in self.exporters.values() if e.status.lease_ref and _ref(e) == lease]
        assert len(found) <= 1, "two exporters for one lease"
        return found[0] if found else None

    def repair(self, group: tuple[str, ...]) -> None:
        """Passes over exporters and leases, until there is nothing to repair."""
        for _ in range(10):
            if not (self.repair_exporters(group) | self._repair_leases()):
                return
        raise AssertionError("the repair does not come to an end")

    def repair_exporters(self, group: tuple[str, ...], first: int | None = None) -> bool:
        """Repair every exporter, or the first ones; returns whether anything was to be done."""
        repaired = False
        for exporter in tuple(self.exporters.values())[:first]:
            lease = self.leases.get(_ref(exporter))
            others = [name for name in group if name != _ref(exporter)]
            partners = (
                [Partner(self.leases.get(name), self.holder(name)) for name in others]
                if _ref(exporter) in group
                else []
            )
            mend = mend_exporter(exporter, lease, partners)
            if mend is Mend.FREE:
                self.perform(assignment.free(exporter))
            elif mend is Mend.FINISH:
                assert lease is not None
                self.perform(assignment.finish(lease, exporter, Approval(), now=EPOCH))
            repaired |= mend is not Mend.NOTHING
        return repaired

    def _repair_leases(self) -> bool:
        repaired = False
        for lease in tuple(self.leases.values()):
            if lease.status.ended or lease.status.exporter_ref is None:
                continue
            exporter = self.exporters.get(lease.status.exporter_ref.name)
            mend = mend_lease(lease, exporter)
            if mend is Mend.RETAKE:
                assert exporter is not None
                self.perform(assignment.retake(lease, exporter))
            elif mend is not Mend.NOTHING:
                reason = "ExporterRemoved" if mend is Mend.END_REMOVED else "ExporterTaken"
                self.perform(assignment.end(lease, exporter, reason=reason, now=EPOCH))
            repaired |= mend is not Mend.NOTHING
        return repaired

    def check(self) -> None:
        """Leases and exporters agree, and no exporter has two leases."""
        for exporter in self.exporters.values():
            if exporter.status.lease_ref is not None:
                held = self.leases[_ref(exporter)]
                assert not held.status.ended
                assert held.metadata.uid == exporter.status.lease_uid
                assert held.status.exporter_ref is not None
                assert held.status.exporter_ref.name == exporter.metadata.name
        for lease in self.leases.values():
            if lease.status.exporter_ref is not None and not lease.status.ended:
                assert self.holder(lease.metadata.name) is not None


def _ref(exporter: Exporter) -> str:
    return exporter.status.lease_ref.name if exporter.status.lease_ref is not None else ""


def three() -> tuple[Stored, Plan]:
    """Three waiting leases of one request, an exporter for each, and the plan to assign them."""
    stored = Stored()
    for number in range(3):
        meta = ObjectMeta(name=f"e{number}", namespace="lab", resource_version="1")
        stored.exporters[meta.name] = replace(exporter(), metadata=meta)
        meta = ObjectMeta(
            name=f"l{number}", namespace="lab", uid=f"u{number}", resource_version="1"
        )
        stored.leases[meta.name] = replace(lease(), metadata=meta)
    parts = [
        Part(lease=held, exporter=taken, approval=Approval())
        for held, taken in zip(stored.leases.values(), stored.exporters.values(), strict=True)
    ]
    return stored, assignment.assign(parts, now=EPOCH)


GROUP = ("l0", "l1", "l2")
WRITES = 6


def assigned(stored: Stored) -> list[bool]:
    """For each open lease of the request whether it has its exporter."""
    return [
        found.status.exporter_ref is not None
        for name in GROUP
        if (found := stored.leases.get(name)) is not None and not found.status.ended
    ]


def test_all_exporters_are_taken_before_the_first_lease_is_written() -> None:
    _, plan = three()
    assert [value.metadata.name for value in plan.writes] == ["e0", "e1", "e2", *GROUP]
    assert plan.committed == 3


@pytest.mark.parametrize("made", range(WRITES + 1))
def test_after_a_crash_within_an_assignment_the_repair_leaves_all_or_none(made: int) -> None:
    stored, plan = three()
    for value in plan.writes[:made]:
        stored.write(value)
    stored.repair(GROUP)
    stored.check()
    assert assigned(stored) == [made >= plan.committed] * 3


@pytest.mark.parametrize("changed", range(3))
def test_an_exporter_that_cannot_be_taken_leaves_the_others_free(changed: int) -> None:
    stored, plan = three()
    other = replace(lease(), metadata=ObjectMeta(name="other", namespace="lab", uid="o"))
    stored.leases["other"] = replace(other, metadata=replace(other.metadata, resource_version="1"))
    part = Part(
        lease=stored.leases["other"],
        exporter=stored.exporters[f"e{changed}"],
        approval=Approval(),
    )
    stored.perform(assignment.assign((part,), now=EPOCH))
    stored.perform(plan)
    stored.check()
    assert assigned(stored) == [False] * 3
    assert [_ref(found) for found in stored.exporters.values()].count("") == 2
    stored.repair(GROUP)
    assert assigned(stored) == [False] * 3


def test_a_lease_that_changed_after_the_commit_is_finished_by_the_repair() -> None:
    stored, plan = three()
    stored.write(stored.leases["l1"])
    stored.perform(plan)
    assert assigned(stored) == [True, False, False]
    stored.repair(GROUP)
    stored.check()
    assert assigned(stored) == [True] * 3


def _release(stored: Stored, name: str) -> None:
    """The lease ends, as the client wished; its exporter may stay taken."""
    found = stored.leases[name]
    (ended, *_) = assignment.end(found, None, reason="Released", now=EPOCH).writes
    stored.write(ended)


ACCIDENTS: dict[str, Callable[[Stored, str], object]] = {
    "nothing": lambda stored, number: None,
    "lease released": lambda stored, number: _release(stored, f"l{number}"),
    "lease deleted": lambda stored, number: stored.leases.pop(f"l{number}"),
    "exporter deleted": lambda stored, number: stored.exporters.pop(f"e{number}"),
    "exporter freed by hand": lambda stored, number: stored.perform(
        assignment.free(stored.exporters[f"e{number}"])
    ),
}


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_whatever_happens_after_a_crash_leases_and_exporters_agree(accident: str) -> None:
    for made, number, repaired in product(range(WRITES + 1), "012", range(4)):
        check_after_crash(accident, made, number, repaired)


def check_after_crash(accident: str, made: int, number: str, repaired: int) -> None:
    """The first repair dies as well, after ``repaired`` exporters."""
    stored, plan = three()
    for value in plan.writes[:made]:
        stored.write(value)
    stored.repair_exporters(GROUP, first=repaired)
    ACCIDENTS[accident](stored, number)
    stored.repair(GROUP)
    stored.check()
    whole = accident in ("nothing", "lease released", "lease deleted")
    assert not whole or len(set(assigned(stored))) <= 1, "some leases of the request have exporters"
