"""How the runtime is told how long to wait after failures."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

Retry = Callable[[int], timedelta]
"""The wait after this many failures in a row; ``kit.backoff`` with a source of chance bound."""
