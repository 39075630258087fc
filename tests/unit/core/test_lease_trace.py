"""The ids of the trace of a lease: the same in every process, and sampled alike."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from bullpen.core.leases.lease_trace import (
    Span,
    Step,
    parent_id,
    sampled,
    span_id,
    trace_id,
)

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
UID = "6f0d4f0e-31b1-4d0c-9f43-5b2c8a5b7a10"


def span(step: Step, *, lease: str = UID, start: datetime = NOON) -> Span:
    return Span(lease=lease, step=step, start=start, end=start)


def test_the_trace_is_the_uid_of_the_lease() -> None:
    assert f"{trace_id(UID):032x}" == UID.replace("-", "")


@given(st.text(max_size=40))
def test_any_uid_has_legal_ids(uid: str) -> None:
    assert 0 <= trace_id(uid) < 2**128
    for step in Step:
        assert 0 < span_id(span(step, lease=uid)) < 2**64


def test_every_step_is_below_the_lease_and_has_an_id_of_its_own() -> None:
    root = span_id(span(Step.LEASE))
    assert parent_id(span(Step.LEASE)) is None
    others = [span(step) for step in Step if step is not Step.LEASE]
    assert {parent_id(one) for one in others} == {root}
    assert len({root, *map(span_id, others)}) == len(Step)
    again = span(Step.DIAL, start=NOON + timedelta(seconds=1))
    assert span_id(again) != span_id(span(Step.DIAL))


def test_a_share_of_the_leases_is_traced() -> None:
    step = 0x9E3779B97F4A7C15F39CC0605CEDC835
    uids = [str(uuid.UUID(int=number * step % 2**128)) for number in range(1, 2001)]
    assert all(sampled(uid, 1.0) for uid in uids)
    assert not any(sampled(uid, 0.0) for uid in uids)
    quarter = {uid for uid in uids if sampled(uid, 0.25)}
    assert 400 < len(quarter) < 600
    assert quarter <= {uid for uid in uids if sampled(uid, 0.5)}
