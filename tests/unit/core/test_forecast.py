"""What a lease that waits for a pool of another process is told."""

from __future__ import annotations

from dataclasses import replace

from bullpen.api.exporter_template import Template
from bullpen.api.kinds.exporterset import ExporterSet, ExporterSetSpec, ExporterSetStatus
from bullpen.api.meta import LabelSelector, ObjectMeta
from bullpen.core.pools.forecast import reported


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
