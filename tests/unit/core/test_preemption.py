"""What the holders of devices are told about their end for a claim."""

from __future__ import annotations

from datetime import timedelta

import pytest

from bullpen.api.meta import Condition
from bullpen.core.leases import preemption
from bullpen.core.leases.preemption import RETHINK, Taker
from bullpen.kit.clock import EPOCH

BY = Taker("other", admin=True)
SECOND = timedelta(seconds=1)


def telling(
    found: tuple[Condition, ...], by: Taker | None, *, after: timedelta
) -> tuple[Condition, ...]:
    return preemption.telling(
        found, by, grace=timedelta(minutes=1), generation=1, now=EPOCH + after
    )


@pytest.mark.parametrize("first", [BY, None], ids=["it ends", "it goes on"])
def test_a_holder_is_not_told_the_opposite_at_once(first: Taker | None) -> None:
    """Two controllers at work contradicted each other two hundred times a second."""
    found = telling((), BY, after=timedelta(0))
    if first is None:
        found = telling(found, None, after=RETHINK)
    said, opposite = preemption.told(found), None if first is not None else BY
    at = preemption.settles_at(found) - EPOCH
    assert telling(found, opposite, after=at - SECOND) == found
    assert preemption.told(telling(found, opposite, after=at)) is not said


def test_a_holder_that_was_told_nothing_is_told_at_once() -> None:
    assert preemption.told(telling((), BY, after=timedelta(0)))
    assert telling((), None, after=timedelta(0)) == ()
