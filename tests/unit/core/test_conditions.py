"""Setting one condition among others."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.meta import Condition, ConditionStatus
from bullpen.core import conditions
from bullpen.kit.clock import EPOCH

LATER = EPOCH + timedelta(minutes=5)


def set_one(
    found: tuple[Condition, ...],
    type: str,
    *,
    status: bool,
    reason: str = "Because",
    now: datetime = EPOCH,
) -> tuple[Condition, ...]:
    return conditions.condition(
        found, type, status=status, reason=reason, message="m", generation=1, now=now
    )


def test_a_new_condition_goes_last() -> None:
    found = set_one(set_one((), "A", status=True), "B", status=False)
    assert [(c.type, c.status) for c in found] == [
        ("A", ConditionStatus.TRUE),
        ("B", ConditionStatus.FALSE),
    ]


def test_a_known_one_stays_in_its_place() -> None:
    found = set_one(set_one((), "A", status=True), "B", status=True)
    found = set_one(found, "A", status=False, reason="Changed")
    assert [(c.type, c.reason) for c in found] == [("A", "Changed"), ("B", "Because")]


def test_the_time_moves_with_the_status_and_with_nothing_else() -> None:
    found = set_one((), "A", status=True)
    same = set_one(found, "A", status=True, reason="Other", now=LATER)
    assert same[0].last_transition_time == EPOCH
    assert same[0].reason == "Other"
    turned = set_one(same, "A", status=False, now=LATER)
    assert turned[0].last_transition_time == LATER


def test_setting_what_is_there_changes_nothing() -> None:
    found = set_one((), "A", status=True)
    assert set_one(found, "A", status=True, now=LATER) == found


def test_a_condition_holds_only_when_it_is_there_and_true() -> None:
    found = set_one(set_one((), "A", status=True), "B", status=False)
    assert conditions.holds(found, "A")
    assert not conditions.holds(found, "B")
    assert not conditions.holds(found, "C")
    assert conditions.get(found, "C") is None


types = st.lists(st.sampled_from("ABCD"), unique=True)


@given(types, st.sampled_from("ABCD"))
def test_moving_one_to_the_end_keeps_all_and_their_order(names: list[str], chosen: str) -> None:
    found: tuple[Condition, ...] = ()
    for name in names:
        found = set_one(found, name, status=True)
    moved = [c.type for c in conditions.last(found, chosen)]
    assert sorted(moved) == sorted(names)
    assert [name for name in moved if name != chosen] == [n for n in names if n != chosen]
    if chosen in names:
        assert moved[-1] == chosen
