"""The pool that the benchmarks of passes measure, and an Exporter of it that is ready."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from bullpen.api.kinds.exporter import Exporter, ExporterStatusValue
from bullpen.core.conditions import condition
from bullpen.core.exporters import presence

NAMESPACE = "default"
POOL = "bench"


def ready(exporter: Exporter, now: datetime) -> Exporter:
    said = condition(
        (),
        "Registered",
        status=True,
        reason="Register",
        generation=exporter.metadata.generation,
        now=now,
    )
    registered = replace(exporter, status=replace(exporter.status, conditions=said))
    status = presence.reported(registered, value=ExporterStatusValue.AVAILABLE, message="", now=now)
    return replace(registered, status=status)
