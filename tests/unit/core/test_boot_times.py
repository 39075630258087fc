"""What recent boots predict, and how wrong that was."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.kinds.exporterset import ExporterSetStatus
from bullpen.core.pools import boot_times
from bullpen.core.pools.boot_times import ASSUMED, BOOTS_FEW, BOOTS_MAX, MARGIN, BootTimes


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def booted(*numbers: float) -> BootTimes:
    return BootTimes().measured(map(seconds, numbers))


def test_the_typical_boot_is_the_median() -> None:
    assert booted().typical is None
    assert booted(4).typical == seconds(4)
    assert booted(4, 5, 60).typical == seconds(5), "one slow boot does not move it"


def test_slow_boots_are_known_after_a_few() -> None:
    assert booted(*[4] * (BOOTS_FEW - 1)).slow is None
    assert booted(*range(1, 11)).slow == seconds(9)
    assert booted(*[4] * 9, 30).slow == seconds(4)
    assert booted(*[4] * 8, 30, 30).slow == seconds(30)


def test_old_boots_are_forgotten() -> None:
    found = booted(*[60] * BOOTS_MAX, *[4] * BOOTS_MAX)
    assert len(found.recent) == BOOTS_MAX
    assert found.slow == seconds(4)


def test_a_boot_across_a_clock_that_was_set_back_is_not_counted() -> None:
    assert booted(4, -30).recent == (seconds(4),)


def test_the_error_compares_each_boot_with_the_estimate_before_it() -> None:
    assert booted(4).error is None, "the first had no estimate"
    assert booted(4, 4, 4).error == seconds(0)
    assert booted(4, 10).error == seconds(6)
    assert booted(4, 4, 4, 60).error == seconds(0), "half of the estimates were right"


def test_a_member_starts_early_enough_for_a_slow_boot() -> None:
    assert booted().lead == ASSUMED * 1.5 + MARGIN
    assert booted(4).lead == seconds(6) + MARGIN
    assert booted(*[4] * 8, 30, 30).lead == seconds(30) + MARGIN


def test_boots_survive_in_the_status() -> None:
    found = booted(4, 5, 6)
    status = ExporterSetStatus(boot_times=boot_times.on_record(found))
    assert boot_times.of(status) == found
    assert boot_times.on_record(booted()) is None


def test_the_average_of_an_earlier_release_counts_as_one_boot() -> None:
    assert boot_times.of(ExporterSetStatus(typical_boot=seconds(4))) == booted(4)


@given(st.lists(st.floats(0, 600), max_size=2 * BOOTS_MAX))
def test_every_estimate_is_a_boot_that_was_measured(boots: list[float]) -> None:
    found = booted(*boots)
    assert {found.typical, found.slow} <= {None, *found.recent}
    if found.slow is not None and found.typical is not None:
        assert found.typical <= found.slow
        assert sum(boot > found.slow for boot in found.recent) * 10 <= len(found.recent)
