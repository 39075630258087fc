"""Pauses between passes of the same key: a burst of changes causes few passes."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

Q = TypeVar("Q", bound=Hashable)

REST_MAX = timedelta(milliseconds=100)


class PassPauses(Generic[Q]):
    """Until when each key is paused. A larger pool has longer pauses."""

    def __init__(self, each: timedelta, longest: timedelta = REST_MAX) -> None:
        """``each``: the pause for each object that a pass looks at."""
        self._each, self._longest = each, longest
        self._until: dict[Q, datetime] = {}

    def begin(self, key: Q, size: int, *, now: datetime) -> None:
        self._until[key] = now + min(self._each * size, self._longest)

    def until(self, key: Q, *, now: datetime) -> datetime | None:
        """When the pause ends; None if it is over or there was none."""
        end = self._until.get(key, now)
        # An end further ahead than any pause is from before the clock was set back.
        return end if now < end <= now + self._longest else None

    def forget(self, key: Q) -> None:
        self._until.pop(key, None)
