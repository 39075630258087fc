"""What is expected of the next boot."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from bullpen.api.exporterset import ExporterSet, ExporterSetSpec, ExporterSetStatus, Template
from bullpen.api.meta import LabelSelector, ObjectMeta
from bullpen.core.pools.forecast import BOOT_ASSUMED, lead, reported, typical

SECOND = timedelta(seconds=1)


def test_the_first_boot_is_the_typical_one() -> None:
    assert typical(None, [4 * SECOND]) == 4 * SECOND


def test_later_boots_move_it_a_little() -> None:
    assert typical(4 * SECOND, [5 * SECOND]) == 4.3 * SECOND


def test_a_boot_across_a_clock_that_was_set_back_is_not_counted() -> None:
    assert typical(4 * SECOND, [-30 * SECOND]) == 4 * SECOND
    assert typical(None, [-30 * SECOND]) is None


def test_what_was_never_measured_is_assumed() -> None:
    assert lead(None) > BOOT_ASSUMED


def test_a_pool_that_reports_no_trouble_starts_one() -> None:
    calm = ExporterSet(
        metadata=ObjectMeta(name="uboot", namespace="lab", generation=2),
        spec=ExporterSetSpec(
            virtual_target_class_name="uboot",
            selector=LabelSelector(match_labels={"board": "uboot"}),
            template=Template(),
        ),
        status=ExporterSetStatus(observed_generation=2),
    )
    assert reported(calm) == "pool uboot is starting a member"
    assert reported(replace(calm, status=ExporterSetStatus())) == "pool uboot is being set up"
