"""PassPauses between two looks: long enough to save work, and over when they should be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bullpen.controllers.pass_pause import REST_MAX, PassPauses

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EACH = timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("later", "resting"),
    [
        pytest.param(timedelta(0), True, id="just begun"),
        pytest.param(timedelta(milliseconds=9), True, id="not yet over"),
        pytest.param(timedelta(milliseconds=10), False, id="over"),
        pytest.param(timedelta(hours=-1), False, id="the clock was set back by an hour"),
        pytest.param(-REST_MAX, False, id="the clock was set back by as long as a rest may be"),
        pytest.param(timedelta(hours=1), False, id="the clock was set forwards"),
    ],
)
def test_a_rest_lasts_as_long_as_was_said_whatever_happens_to_the_clock(
    later: timedelta, resting: bool
) -> None:
    rests: PassPauses[str] = PassPauses(EACH)
    rests.begin("pool", 10, now=NOON)
    assert (rests.until("pool", now=NOON + later) is not None) is resting


def test_no_rest_is_longer_than_the_longest() -> None:
    rests: PassPauses[str] = PassPauses(EACH)
    rests.begin("pool", 1_000_000, now=NOON)
    assert rests.until("pool", now=NOON) == NOON + REST_MAX


def test_what_was_forgotten_or_never_looked_at_does_not_rest() -> None:
    rests: PassPauses[str] = PassPauses(EACH)
    rests.begin("pool", 10, now=NOON)
    rests.forget("pool")
    assert rests.until("pool", now=NOON) is None
    assert rests.until("other", now=NOON) is None
