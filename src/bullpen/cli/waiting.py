"""Waiting in a command, with a time limit and a message."""

from __future__ import annotations

import time
from collections.abc import Callable

from bullpen.errors import TimedOut

LOOK_SECONDS = 0.05


def wait_for(done: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Poll until ``done`` returns true; raises ``TimedOut`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimedOut(f"timed out after {seconds:g} s waiting for {what}")
        time.sleep(LOOK_SECONDS)
