"""An event loop in which waiting takes no time: a day passes in milliseconds.

A wait that nothing can end is an error instead of a hang.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from bullpen.kit.clock import VirtualClock

T = TypeVar("T")


class Deadlock(RuntimeError):
    """No task can run and no timer is set."""


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Deadlock(f"every task is blocked at {self._clock.now().isoformat()}")
        # Rounded up: a step of no microseconds would spin for ever just short of the timer.
        self._clock.advance(timedelta(microseconds=math.ceil(timeout * 1e6)))
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualClock) -> None:
        self._virtual = clock
        self._start = clock.now()
        super().__init__(_JumpingSelector(clock))

    def time(self) -> float:
        return (self._virtual.now() - self._start).total_seconds()


def run(clock: VirtualClock, main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end under ``clock``."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(main)
