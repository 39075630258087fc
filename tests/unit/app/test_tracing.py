"""Spans of leases, from what services and views tell."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from bullpen.api.kinds.lease import Lease, LeaseSpec, LeaseStatus
from bullpen.api.meta import Condition, ConditionStatus, LocalObjectReference, ObjectMeta
from bullpen.app.tracing import OPEN_MAX, LeaseTraces, TracingSettings, tracing
from bullpen.core.leases.lease_trace import Span, Step
from bullpen.core.leases.sessions import Session
from bullpen.kit.clock import VirtualClock

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
UID = "6f0d4f0e-31b1-4d0c-9f43-5b2c8a5b7a10"


class Traced:
    """What is reported of a lease, and ways to let time pass and the lease change."""

    def __init__(self, ratio: float = 1.0) -> None:
        self.clock = VirtualClock(NOON)
        self.spans: list[Span] = []
        self.traces = LeaseTraces(self.spans.append, clock=self.clock, ratio=ratio)
        listeners: list[Any] = []
        view: Any = SimpleNamespace(listen=listeners.append)
        self.traces.follow(view)
        (self.changed,) = listeners

    def steps(self) -> list[tuple[Step, timedelta, timedelta]]:
        return [(span.step, span.start - NOON, span.end - span.start) for span in self.spans]


def lease(uid: str = UID, status: LeaseStatus | None = None) -> Lease:
    meta = ObjectMeta(name="a", namespace="lab", uid=uid, creation_timestamp=NOON)
    spec = LeaseSpec(client_ref=LocalObjectReference(name="alice"))
    return Lease(metadata=meta, spec=spec, status=status or LeaseStatus())


ASSIGNED = LeaseStatus(exporter_ref=LocalObjectReference(name="e1"), begin_time=NOON + 3 * SECOND)
OVER = replace(
    ASSIGNED,
    ended=True,
    end_time=NOON + 9 * SECOND,
    conditions=(
        Condition(
            type="Ready",
            status=ConditionStatus.FALSE,
            reason="Released",
            message="",
            last_transition_time=NOON,
        ),
    ),
)


def test_a_lease_has_a_span_for_each_step_until_its_client_may_connect() -> None:
    traced = Traced()
    traced.traces.requested(lease(), start=NOON)
    traced.changed(None, lease())
    traced.clock.advance(3 * SECOND)
    traced.changed(lease(), lease(status=ASSIGNED))
    traced.traces.created(lease(status=ASSIGNED), start=NOON)
    traced.clock.advance(SECOND)
    traced.traces.dialled(lease(status=ASSIGNED), start=NOON + 3 * SECOND)
    traced.traces.dialled(lease(status=ASSIGNED), start=NOON + 4 * SECOND)
    assert traced.steps() == [
        (Step.WAIT, 0 * SECOND, 3 * SECOND),
        (Step.CREATE, 0 * SECOND, 3 * SECOND),
        (Step.DIAL, 3 * SECOND, SECOND),
        (Step.LEASE, 0 * SECOND, 4 * SECOND),
        (Step.DIAL, 4 * SECOND, 0 * SECOND),
    ]
    assert traced.spans[0].attributes == {
        "bullpen.namespace": "lab",
        "bullpen.lease": "a",
        "bullpen.client": "alice",
        "bullpen.exporter": "e1",
    }


def test_a_lease_that_the_view_shows_first_begins_with_its_call() -> None:
    traced = Traced()
    traced.clock.advance(SECOND)
    traced.changed(None, lease())
    traced.traces.requested(lease(), start=NOON)
    traced.traces.dialled(lease(), start=NOON + SECOND)
    assert traced.steps()[-1] == (Step.LEASE, 0 * SECOND, SECOND)


def test_a_lease_that_ends_unused_says_why() -> None:
    traced = Traced()
    traced.changed(None, lease())
    traced.changed(lease(), lease(status=ASSIGNED))
    traced.clock.advance(9 * SECOND)
    traced.changed(lease(status=ASSIGNED), lease(status=OVER))
    assert traced.steps()[-1] == (Step.LEASE, 0 * SECOND, 9 * SECOND)
    assert traced.spans[-1].attributes["bullpen.reason"] == "Released"


def test_a_deleted_lease_and_one_from_before_leave_nothing() -> None:
    traced = Traced()
    traced.changed(None, lease())
    traced.changed(lease(), None)
    before = lease()
    before = replace(before, metadata=replace(before.metadata, creation_timestamp=NOON - SECOND))
    traced.changed(None, before)
    traced.changed(before, replace(before, status=OVER))
    assert traced.spans == []


def test_the_first_byte_counts_from_the_joining_of_both_sides() -> None:
    traced = Traced()
    traced.clock.advance(2 * SECOND)
    traced.traces.first_byte(Session(stream="s", lease=UID, started=NOON + SECOND))
    assert traced.steps() == [(Step.FIRST_BYTE, SECOND, SECOND)]


def test_a_lease_that_is_not_sampled_has_no_span() -> None:
    traced = Traced(ratio=0.0)
    traced.traces.requested(lease(), start=NOON)
    traced.changed(None, lease())
    traced.changed(lease(), lease(status=ASSIGNED))
    traced.traces.created(lease(), start=NOON)
    traced.traces.dialled(lease(), start=NOON)
    traced.traces.first_byte(Session(stream="s", lease=UID, started=NOON))
    assert traced.spans == []


def test_no_more_leases_are_remembered_than_the_limit() -> None:
    traced = Traced()
    for number in range(OPEN_MAX + 5):
        traced.traces.requested(lease(uid=f"{number:032x}"), start=NOON)
    traced.traces.dialled(lease(uid=f"{OPEN_MAX + 1:032x}"), start=NOON)
    assert [span.step for span in traced.spans] == [Step.DIAL]


async def test_without_a_collector_nothing_is_traced() -> None:
    async with tracing(TracingSettings(), "bullpen", clock=VirtualClock(NOON)) as traces:
        assert traces is None


async def test_a_collector_that_does_not_answer_delays_no_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = TracingSettings(endpoint="http://127.0.0.1:9")
    async with tracing(settings, "bullpen", clock=VirtualClock(NOON)) as traces:
        assert traces is not None
        traces.dialled(lease(), start=NOON)
    assert "127.0.0.1" in caplog.text
