"""Clock steps of the simulator reach across everything that lasts a while."""

from __future__ import annotations

from bullpen.identity.tokens import CLOCK_SKEW, STREAM_LIFETIME
from bullpen.sim.story import CLOCK_JUMPS_MAX


def test_the_clock_is_set_by_more_than_a_stream_token_lasts() -> None:
    """Steps of ten minutes never made a used token expire and be valid again."""
    assert max(CLOCK_JUMPS_MAX) > 2 * (STREAM_LIFETIME + CLOCK_SKEW).total_seconds()
