"""How long a lease has had its exporter, whatever the wall clock says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from bullpen.api.kinds.lease import Lease, LeaseSpec, LeaseStatus
from bullpen.api.meta import LocalObjectReference, ObjectMeta
from bullpen.core.lab_index import HoldingTimes
from bullpen.core.leases import lifecycle

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
STEADY = timedelta(days=9)


def lease(
    *,
    duration: timedelta | None = HOUR,
    maximum: timedelta | None = None,
    begin: datetime | None = None,
    end: datetime | None = None,
) -> Lease:
    alice = LocalObjectReference(name="alice")
    return Lease(
        metadata=ObjectMeta(name="one", namespace="a"),
        spec=LeaseSpec(client_ref=alice, duration=duration, begin_time=begin, end_time=end),
        status=LeaseStatus(
            begin_time=NOON,
            exporter_ref=LocalObjectReference(name="e1"),
            maximum_duration=maximum,
        ),
    )


def test_a_lease_is_over_after_its_duration_and_no_later_than_its_maximum() -> None:
    assert lifecycle.holds_at_most(lease()) == HOUR
    assert lifecycle.holds_at_most(lease(maximum=MINUTE)) == MINUTE
    assert lifecycle.holds_at_most(lease(duration=None, maximum=MINUTE)) == MINUTE
    assert lifecycle.holds_at_most(lease(duration=None)) is None


def test_a_lease_that_is_booked_to_a_moment_ends_by_the_wall_clock() -> None:
    assert lifecycle.holds_at_most(lease(begin=NOON)) is None
    assert lifecycle.holds_at_most(lease(end=NOON + HOUR)) is None
    assert lifecycle.holds_at_most(lease(end=NOON + HOUR, maximum=MINUTE)) == MINUTE


def test_a_lease_is_over_by_steady_time_although_the_wall_clock_was_set_back() -> None:
    found, early = lease(), NOON - 5 * HOUR
    assert lifecycle.due_to_end(found, held=HOUR - MINUTE, now=early) is None
    assert lifecycle.due_to_end(found, held=HOUR, now=early) == "Expired"
    assert lifecycle.due_to_end(found, held=MINUTE, now=NOON + HOUR) == "Expired"


def test_the_time_before_this_process_saw_the_lease_counts() -> None:
    held = HoldingTimes()
    held.note(lease(), now=NOON + 10 * MINUTE, steady=STEADY)
    assert held.held("one", steady=STEADY) == 10 * MINUTE
    assert held.next_due() == STEADY + 50 * MINUTE
    # The same lease, looked at again after the clock was set back.
    held.note(lease(), now=NOON - 5 * HOUR, steady=STEADY + MINUTE)
    assert held.held("one", steady=STEADY + MINUTE) == 11 * MINUTE


def test_a_begin_in_the_future_counts_from_now() -> None:
    held = HoldingTimes()
    held.note(lease(), now=NOON - HOUR, steady=STEADY)
    assert held.next_due() == STEADY + HOUR


def test_a_changed_duration_moves_the_end_and_each_end_is_told_once() -> None:
    held = HoldingTimes()
    held.note(lease(), now=NOON, steady=STEADY)
    held.note(lease(duration=2 * HOUR), now=NOON, steady=STEADY)
    assert held.take_due(STEADY + HOUR) == set()
    assert held.take_due(STEADY + 2 * HOUR) == {"one"}
    assert held.take_due(STEADY + 2 * HOUR) == set()
    held.note(lease(duration=None), now=NOON, steady=STEADY)
    assert held.next_due() is None


def test_what_has_no_exporter_is_not_timed() -> None:
    held = HoldingTimes()
    held.note(lease(), now=NOON, steady=STEADY)
    held.note(replace(lease(), status=LeaseStatus()), now=NOON, steady=STEADY)
    assert held.held("one", steady=STEADY) is None
    assert held.next_due() is None
    held.note(lease(), now=NOON, steady=STEADY)
    held.forget("one")
    assert held.take_due(STEADY + 9 * HOUR) == set()
