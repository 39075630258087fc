"""The type of the function that determines the wait after failures."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

Retry = Callable[[int], timedelta]
"""The wait after this many consecutive failures; ``kit.backoff`` with a bound random source."""
