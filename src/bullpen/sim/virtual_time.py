"""An event loop in which waiting takes no time: a day passes in milliseconds.

A wait that nothing can end is an error instead of a hang. Tasks are told apart by the
order they were made in and not by their address, so that whoever keeps them in a set
goes through it in the same order in every run.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import selectors
from collections.abc import Callable, Coroutine, Generator
from datetime import timedelta
from typing import Any, TypeVar

from bullpen.kit.clock import VirtualClock

T = TypeVar("T")

TURNS_MAX = 20_000
"""Turns of the loop within one second of virtual time, more than any work takes."""


class Deadlock(RuntimeError):
    """No task can run and no timer is set."""


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nobody: nothing outside the run can happen in it."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock
        self._micros = 0
        self._turns = 0
        self._since = 0.0
        self.time = 0.0
        """Seconds since the beginning."""

        self.restless: Callable[[], None] | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._turns += 1
        if self._turns == TURNS_MAX:
            if self.restless is not None and self.time - self._since < 1.0:
                self.restless()
            self._turns, self._since = 0, self.time
        if timeout is None:
            raise Deadlock(f"every task is blocked at {self._clock.now().isoformat()}")
        if timeout > 0:
            self._advance(timeout)
        return []

    def _advance(self, timeout: float) -> None:
        # Rounded up: a step of no microseconds would spin for ever just short of the timer.
        step = math.ceil(timeout * 1e6)
        self._micros += step
        self.time = self._micros / 1e6
        self._clock.advance(timedelta(microseconds=step))


class _NumberedTask(asyncio.Task[T]):
    """A task whose hash is its number."""

    def __init__(self, coro: Coroutine[Any, Any, T], *, number: int, **kwargs: Any) -> None:
        self._number = number
        super().__init__(coro, **kwargs)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualClock) -> None:
        self._numbers = itertools.count()
        self._jumping = _JumpingSelector(clock)
        super().__init__(self._jumping)
        self.set_task_factory(self._make)

    def when_restless(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` when work goes on and on and time does not pass."""
        self._jumping.restless = tell

    def time(self) -> float:
        return self._jumping.time

    def _make(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        **kwargs: Any,
    ) -> asyncio.Task[T]:
        assert asyncio.iscoroutine(coro)
        return _NumberedTask(coro, number=next(self._numbers), loop=loop, **kwargs)


def run(clock: VirtualClock, main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end under ``clock``."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(main)
