"""The reference lists every metric with its type and text, and counts are of what happened."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from bullpen.api.kinds.lease import Lease, LeaseSpec, LeaseStatus
from bullpen.api.meta import Condition, ConditionStatus, LocalObjectReference, ObjectMeta
from bullpen.apiserver.metrics import Metrics
from bullpen.app.health import Health
from bullpen.app.lease_metrics import LeaseMetrics
from bullpen.app.metrics import (
    AuditMetrics,
    ConnectionMetrics,
    FaultMetrics,
    LastingPoolMetrics,
    PoolMetrics,
    ProviderMetrics,
    WebhookMetrics,
)
from bullpen.app.router_metrics import RouterMetrics
from bullpen.controllers.leases.lease_counter import LeaseCounter
from bullpen.core.leases.lease_figures import Assigned, Ended, Refused, Requested, figures
from bullpen.kit.clock import SystemClock, VirtualClock
from bullpen.runtime.exposition import exposition

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \|[^|]*\| ([^|]+) \|$", re.MULTILINE)

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def nothing() -> Any:
    """The parts of a process that counts nothing yet."""
    empty = SimpleNamespace(listen=lambda listener: None, all=lambda: iter(()))
    return SimpleNamespace(leases=empty, exporters=empty)


def exposed() -> Iterator[Metric]:
    health = Health()
    health.count_requests({})  # type: ignore[arg-type]
    yield from Metrics().collectors.collect()
    yield from health.collectors.collect()
    yield from PoolMetrics(lambda: ()).collect()
    yield from LastingPoolMetrics(lambda: (), lambda: ()).collect()
    yield from ProviderMetrics(lambda: ()).collect()
    yield from FaultMetrics(SimpleNamespace(counts={}, all=tuple)).collect()  # type: ignore[arg-type]
    yield from AuditMetrics(SimpleNamespace(recorded=0, dropped=0)).collect()  # type: ignore[arg-type]
    yield from ConnectionMetrics(()).collect()
    yield from LeaseMetrics(nothing(), nothing().leases, clock=SystemClock()).collect()
    yield from WebhookMetrics(SimpleNamespace(results={}, queued=dict)).collect()  # type: ignore[arg-type]
    yield from RouterMetrics(SimpleNamespace(joined=0, passed=lambda: (0, 0))).collect()  # type: ignore[arg-type]


def test_a_wait_of_milliseconds_is_counted_as_one() -> None:
    """Times of leases are whole seconds, by which every warm lease waited 0 s or 1 s."""
    clock = VirtualClock()
    changed: list[Any] = []
    views = SimpleNamespace(
        leases=SimpleNamespace(listen=changed.append),
        exporters=SimpleNamespace(get=lambda *key: None),
    )
    counter = LeaseCounter(views, clock=clock)  # type: ignore[arg-type]
    waits: list[float] = []
    counter.listen(
        lambda counted: (
            waits.append(counted.figure.waited.total_seconds())
            if isinstance(counted.figure, Assigned)
            else None
        )
    )
    (tell,) = changed
    begun = clock.now()
    requested = lease(created=begun)
    assigned = lease(replace(ACTIVE, begin_time=begun + SECOND), created=begun)
    tell(None, requested)
    clock.advance(timedelta(milliseconds=4))
    tell(requested, assigned)
    assert waits == [0.004]
    # A booked lease waits from its begin, which somebody chose.
    later = begun + timedelta(hours=1)
    booked = replace(requested, spec=replace(requested.spec, begin_time=later))
    tell(None, booked)
    clock.advance(timedelta(hours=1))
    tell(booked, replace(assigned, spec=booked.spec))
    assert waits == [0.004, 0.004]
    # Of one that was assigned when it was first seen, only its own times are known.
    tell(None, assigned)
    assert waits == [0.004, 0.004, 1.0]


def test_the_reference_has_every_metric_with_its_type_and_text() -> None:
    found = {
        (f"{m.name}_total" if m.type == "counter" else m.name, m.type, m.documentation)
        for m in exposed()
    }
    assert set(ROW.findall(REFERENCE.read_text())) == found


def lease(status: LeaseStatus | None = None, *, created: datetime = NOON) -> Lease:
    meta = ObjectMeta(name="a", namespace="lab", creation_timestamp=created)
    spec = LeaseSpec(client_ref=LocalObjectReference(name="alice"))
    return Lease(metadata=meta, spec=spec, status=status or LeaseStatus())


def said(type_: str, status: ConditionStatus, reason: str) -> Condition:
    return Condition(
        type=type_, status=status, reason=reason, message="", last_transition_time=NOON
    )


ACTIVE = LeaseStatus(exporter_ref=LocalObjectReference(name="e1"), begin_time=NOON + 5 * SECOND)


def test_a_lease_counts_once_for_each_step_of_its_life() -> None:
    waiting = lease(LeaseStatus(conditions=(said("Pending", ConditionStatus.TRUE, "NoExporter"),)))
    over = replace(
        ACTIVE,
        ended=True,
        end_time=NOON + 65 * SECOND,
        conditions=(said("Ready", ConditionStatus.FALSE, "Released"),),
    )
    life = [None, lease(), waiting, lease(ACTIVE), lease(ACTIVE), lease(over), lease(over)]
    counted = [
        figure
        for old, new in itertools.pairwise(life)
        if new is not None
        for figure in figures(old, new, since=NOON)
    ]
    assert counted == [
        Requested(),
        Assigned(exporter="e1", waited=5 * SECOND, at_once=False),
        Ended(reason="Released", held=60 * SECOND),
    ]


def test_a_lease_that_never_waited_was_served_at_once() -> None:
    (assigned,) = figures(lease(), lease(ACTIVE), since=NOON)
    assert assigned == Assigned(exporter="e1", waited=5 * SECOND, at_once=True)


def test_the_wait_of_a_booked_lease_begins_at_its_booked_begin() -> None:
    booked = replace(lease(ACTIVE), spec=replace(lease().spec, begin_time=NOON + 4 * SECOND))
    (assigned,) = figures(lease(), booked, since=NOON)
    assert isinstance(assigned, Assigned)
    assert assigned.waited == SECOND


def test_a_refused_lease_counts_as_refused_once() -> None:
    refused = lease(
        LeaseStatus(conditions=(said("Unsatisfiable", ConditionStatus.TRUE, "NoMatch"),))
    )
    assert list(figures(lease(), refused, since=NOON)) == [Refused("NoMatch")]
    assert list(figures(refused, refused, since=NOON)) == []


def test_what_happened_before_a_process_started_is_not_counted() -> None:
    assert list(figures(None, lease(ACTIVE), since=NOON + timedelta(hours=1))) == []


def test_the_waits_of_leases_lead_to_their_traces_in_openmetrics() -> None:
    listeners: list[Any] = []
    empty = SimpleNamespace(all=lambda: iter(()), get=lambda namespace, name: None)
    views: Any = SimpleNamespace(
        leases=SimpleNamespace(listen=listeners.append, all=lambda: iter(())), exporters=empty
    )
    collectors = CollectorRegistry()
    clock = VirtualClock(NOON)
    collectors.register(LeaseMetrics(views, LeaseCounter(views, clock=clock), clock=clock))
    uid = "6f0d4f0e-31b1-4d0c-9f43-5b2c8a5b7a10"
    made = lease()
    made = replace(made, metadata=replace(made.metadata, uid=uid))
    listeners[0](made, replace(made, status=ACTIVE))
    body, kind = exposition(collectors, "application/openmetrics-text;version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert f'# {{trace_id="{uid.replace("-", "")}"}} 5.0' in body.decode()
    plain, kind = exposition(collectors, "*/*")
    assert kind.startswith("text/plain")
    assert b"trace_id" not in plain
