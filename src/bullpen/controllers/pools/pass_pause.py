"""PassPauses between two looks at the same thing: a storm of changes becomes few looks."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

Q = TypeVar("Q", bound=Hashable)

REST_MAX = timedelta(milliseconds=100)


class PassPauses(Generic[Q]):
    """Until when each key is left alone. The larger what was looked at, the longer."""

    def __init__(self, each: timedelta) -> None:
        self._each = each
        self._until: dict[Q, datetime] = {}

    def begin(self, key: Q, size: int, *, now: datetime) -> None:
        self._until[key] = now + min(self._each * size, REST_MAX)

    def until(self, key: Q, *, now: datetime) -> datetime | None:
        """When the rest ends; None for one that is over or never was."""
        end = self._until.get(key, now)
        # One further ahead than any rest is from before the clock was set back.
        return end if now < end <= now + REST_MAX else None

    def forget(self, key: Q) -> None:
        self._until.pop(key, None)
