"""Figures over time: bounded, by the minute for a day and by the half hour for a month."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from bullpen.core.time_series import COARSE, FINE, Buckets, TimeSeries, totals

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def test_a_bucket_has_the_mean_of_its_samples() -> None:
    series = TimeSeries()
    for seconds, value in ((0, 1.0), (20, 2.0), (40, 6.0), (60, 5.0)):
        series.add(START + timedelta(seconds=seconds), (value,))
    assert series.fine.points(at(1)) == [(at(0), (3.0,)), (at(1), (5.0,))]
    assert series.coarse.points(at(1)) == [(at(0), (3.5,))]


def test_figures_that_do_not_change_take_no_space() -> None:
    buckets = Buckets(FINE)
    for minute in range(1_000):
        buckets.add(at(minute), (2, 0))
    assert buckets.points(at(1_000)) == [(at(0), (2, 0)), (at(999), (2, 0))]


def test_the_value_at_the_begin_of_the_span_is_known_though_it_changed_earlier() -> None:
    buckets = Buckets(FINE)
    buckets.add(at(0), (7,))
    buckets.add(at(1), (8,))
    day = FINE.span / timedelta(minutes=1)
    buckets.add(at(2 * day), (9,))
    buckets.add(at(2 * day + 1), (9,))
    assert [values for _, values in buckets.points(at(2 * day + 1))] == [(8,), (9,), (9,)]


def test_a_clock_that_is_set_back_loses_no_sample_and_breaks_no_order() -> None:
    buckets = Buckets(FINE)
    buckets.add(at(10), (1,))
    buckets.add(at(2), (3,))
    buckets.add(at(11), (5,))
    assert buckets.points(at(11)) == [(at(10), (2,)), (at(11), (5,))]


def test_totals_count_values_for_as_long_as_they_lasted_within_the_range() -> None:
    points = [(at(0), (2.0, 1.0)), (at(10), (5.0, 0.0)), (at(20), (0.0, 3.0))]
    assert totals(points, start=at(5), end=at(22)) == (60 * (2 * 5 + 5 * 10), 60 * (5 + 3 * 2))
    assert totals(points, start=at(21), end=at(22)) == (0, 60 * 3)
    assert totals([], start=at(0), end=at(1)) == ()


@given(st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 5)), max_size=300))
def test_points_are_ordered_bounded_and_survive_being_restored(
    samples: list[tuple[int, int]],
) -> None:
    series = TimeSeries()
    for minute, value in samples:
        series.add(at(minute), (float(value),))
    now = at(max((minute for minute, _ in samples), default=0))
    for buckets, resolution in ((series.fine, FINE), (series.coarse, COARSE)):
        points = buckets.points(now)
        moments = [moment for moment, _ in points]
        assert moments == sorted(set(moments))
        assert len(points) <= resolution.buckets_max + 2
        again = Buckets(resolution)
        again.restore(points)
        assert again.points(now) == points
