"""Waits double, are capped, and are spread by chance."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.kit.clock import Backoff

SECOND = timedelta(seconds=1)
STEADY = Backoff(first=SECOND, cap=30 * SECOND, jitter=0)


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [
        pytest.param(0, 0, id="no failure, no wait"),
        pytest.param(-1, 0, id="less than none is none"),
        pytest.param(1, 1, id="the first wait"),
        pytest.param(2, 2, id="doubles"),
        pytest.param(5, 16, id="and doubles"),
        pytest.param(6, 30, id="up to the cap"),
        pytest.param(10_000, 30, id="for ever"),
    ],
)
def test_waits_without_jitter(failures: int, seconds: int) -> None:
    assert STEADY.delay(failures, random.Random(1)) == seconds * SECOND


@given(
    failures=st.integers(1, 100),
    jitter=st.floats(0, 1),
    seed=st.integers(),
)
def test_jitter_only_shortens_and_by_no_more_than_its_share(
    failures: int, jitter: float, seed: int
) -> None:
    steady = STEADY.delay(failures, random.Random(0))
    jittered = Backoff(first=SECOND, cap=30 * SECOND, jitter=jitter)
    delay = jittered.delay(failures, random.Random(seed))
    assert steady * (1 - jitter) - timedelta(microseconds=1) <= delay <= steady


def test_waits_are_spread() -> None:
    chance = random.Random(7)
    backoff = Backoff(first=SECOND, cap=30 * SECOND)
    assert len({backoff.delay(3, chance) for _ in range(20)}) == 20


@pytest.mark.parametrize(
    "facts",
    [
        {"first": timedelta(0), "cap": SECOND},
        {"first": 2 * SECOND, "cap": SECOND},
    ],
)
def test_a_backoff_that_makes_no_sense_cannot_be_made(facts: dict[str, timedelta]) -> None:
    with pytest.raises(AssertionError):
        Backoff(**facts)  # type: ignore[arg-type]


@pytest.mark.parametrize("jitter", [-0.1, 1.1])
def test_jitter_is_a_share(jitter: float) -> None:
    with pytest.raises(AssertionError):
        Backoff(first=SECOND, cap=SECOND, jitter=jitter)
