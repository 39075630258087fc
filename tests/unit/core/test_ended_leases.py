"""Ended leases: which are due, in order, and which were never marked."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.lease import Lease, LeaseSpec, LeaseStatus
from bullpen.api.meta import LocalObjectReference, ObjectMeta
from bullpen.core.lab_index import DUE_AT_ONCE_MAX, EndedLeases
from bullpen.core.leases.lifecycle import ENDED_LABEL
from bullpen.kit.clock import EPOCH

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


def lease(name: str, *, ended: datetime = EPOCH, labelled: bool = True) -> Lease:
    labels = {ENDED_LABEL: "true"} if labelled else {}
    return Lease(
        metadata=ObjectMeta(
            name=name, namespace="lab", uid=f"uid-{name}", creation_timestamp=ended,
            labels=labels,
        ),
        spec=LeaseSpec(client_ref=LocalObjectReference(name="alice")),
        status=LeaseStatus(ended=True, end_time=ended),
    )  # fmt: skip


def names(leases: tuple[Lease, ...]) -> list[str]:
    return [found.metadata.name for found in leases]


def test_a_lease_is_due_when_its_time_is_up() -> None:
    kept = EndedLeases(DAY)
    kept.put(lease("a"))
    assert kept.next_due() == EPOCH + DAY
    assert kept.due(EPOCH + DAY - HOUR) == ()
    assert names(kept.due(EPOCH + DAY)) == ["a"]
    assert names(kept.due(EPOCH + DAY)) == ["a"], "until it is gone"
    kept.remove(lease("a"))
    assert kept.due(EPOCH + DAY) == ()
    assert kept.next_due() is None


def test_nothing_is_kept_where_nothing_is_deleted() -> None:
    kept = EndedLeases(None)
    kept.put(lease("a", labelled=False))
    assert kept.next_due() is None
    assert kept.unlabelled() == ()


def test_one_that_changes_keeps_its_place() -> None:
    kept = EndedLeases(DAY)
    for _ in range(3):
        kept.put(lease("a"))
    assert names(kept.due(EPOCH + DAY)) == ["a"]


def test_one_without_an_end_counts_from_its_beginning() -> None:
    kept = EndedLeases(DAY)
    found = lease("a")
    status = LeaseStatus(ended=True)
    kept.put(Lease(metadata=found.metadata, spec=found.spec, status=status))
    assert kept.next_due() == EPOCH + DAY


def test_those_whose_end_was_not_marked_are_known_until_it_is() -> None:
    kept = EndedLeases(DAY)
    kept.put(lease("a", labelled=False))
    kept.put(lease("b"))
    assert names(kept.unlabelled()) == ["a"]
    kept.put(lease("a"))
    assert kept.unlabelled() == ()
    kept.put(lease("c", labelled=False))
    kept.remove(lease("c"))
    assert kept.unlabelled() == ()


def test_only_so_many_are_thrown_away_at_once() -> None:
    kept = EndedLeases(DAY)
    for number in range(DUE_AT_ONCE_MAX + 5):
        kept.put(lease(f"l{number:04d}", ended=EPOCH + timedelta(seconds=number)))
    found = names(kept.due(EPOCH + 9 * DAY))
    assert found == [f"l{number:04d}" for number in range(DUE_AT_ONCE_MAX)], "the oldest first"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8), st.integers(0, 5)), max_size=30))
def test_it_agrees_with_a_plain_search(steps: list[tuple[bool, int, int]]) -> None:
    kept, plain = EndedLeases(DAY), dict[str, Lease]()
    for add, number, hours in steps:
        name = f"l{number}"
        if add and name not in plain:
            plain[name] = lease(name, ended=EPOCH + hours * HOUR)
            kept.put(plain[name])
        elif not add and name in plain:
            kept.remove(plain.pop(name))
        for moment in (EPOCH + DAY, EPOCH + DAY + 3 * HOUR):
            due = {n for n, found in plain.items() if _due(found) <= moment}
            assert set(names(kept.due(moment))) == due
        assert kept.next_due() == min(map(_due, plain.values()), default=None)


def _due(found: Lease) -> datetime:
    assert found.status.end_time is not None
    return found.status.end_time + DAY
