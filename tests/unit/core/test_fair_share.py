"""Fair share: recent use delays requests in the queue, within a bound."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.core.leases.fair_share import (
    HALF_LIFE,
    HANDICAP_HALF,
    HANDICAP_MAX,
    FairShare,
    Spell,
    debt,
    handicap,
)
from bullpen.kit.clock import EPOCH

HOUR = timedelta(hours=1)


def test_past_use_counts_half_after_a_half_life() -> None:
    recent = debt([Spell(begin=EPOCH - HOUR, end=EPOCH, cost=2.0)], now=EPOCH)
    assert recent == pytest.approx(2.0, rel=0.02)
    earlier = Spell(begin=EPOCH - HALF_LIFE - HOUR, end=EPOCH - HALF_LIFE, cost=2.0)
    assert debt([earlier], now=EPOCH) == pytest.approx(recent / 2)


def test_what_a_client_has_now_counts_as_it_is_used() -> None:
    share = FairShare()
    share.hold("alice", "lease", Spell(begin=EPOCH))
    assert share.debt("alice", now=EPOCH) == 0
    assert share.debt("alice", now=EPOCH + 2 * HOUR) == pytest.approx(2, rel=0.05)
    assert share.debt("bob", now=EPOCH + 2 * HOUR) == 0


def test_the_end_of_a_lease_changes_nothing_about_what_was_used() -> None:
    share, whole = FairShare(), Spell(begin=EPOCH, end=EPOCH + 3 * HOUR, cost=5.0)
    share.hold("alice", "lease", Spell(begin=EPOCH, cost=5.0))
    at = EPOCH + 3 * HOUR
    before = share.debt("alice", now=at)
    share.let_go("alice", "lease", now=at)
    assert share.debt("alice", now=at) == pytest.approx(before)
    later = at + 10 * HOUR
    assert share.debt("alice", now=later) == pytest.approx(debt([whole], now=later))


def test_use_of_an_earlier_process_is_counted_at_its_age() -> None:
    share, old = FairShare(), Spell(begin=EPOCH - 9 * HOUR, end=EPOCH - 8 * HOUR)
    share.used("alice", old, now=EPOCH)
    assert share.debt("alice", now=EPOCH + HOUR) == pytest.approx(debt([old], now=EPOCH + HOUR))


@given(st.floats(min_value=0, max_value=1e9), st.floats(min_value=0, max_value=1e9))
def test_more_use_never_helps_and_the_handicap_is_bounded(one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert timedelta(0) <= handicap(less) <= handicap(more) <= HANDICAP_MAX


def test_half_of_the_handicap_is_reached_at_its_named_use() -> None:
    assert handicap(HANDICAP_HALF) == HANDICAP_MAX / 2
