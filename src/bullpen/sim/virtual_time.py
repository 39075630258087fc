"""An event loop in which waiting takes no time: a day passes in milliseconds.

A wait that nothing can end is an error instead of a hang. Tasks are hashed by their order
of creation and not by their address, so that iterating over a set of tasks has the same
order in every run.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from datetime import datetime, timedelta
from typing import Any, TypeVar, TypeVarTuple

from bullpen.kit.clock import Clock, VirtualClock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TURNS_MAX = 20_000
"""Turns of the loop within one second of virtual time; more indicate a busy loop."""

RESOLUTION = 1e-9
"""Seconds by which a timer may be early: sums of floats are not exact."""

CANCELLED_MAX = 100
"""Cancelled timers in the heap before a cleanup is considered."""


class Deadlock(RuntimeError):
    """No task can run and no timer is set."""


class _NumberedTask(asyncio.Task[T]):
    """A task whose hash is its number."""

    def __init__(self, coro: Coroutine[Any, Any, T], *, number: int, **kwargs: Any) -> None:
        self._number = number
        super().__init__(coro, **kwargs)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Timer(asyncio.TimerHandle):
    """Timers of the same time run in heap order, as in asyncio."""

    __slots__ = ()
    _when: float
    _scheduled: bool

    def __lt__(self, other: asyncio.TimerHandle) -> bool:
        return self._when < other._when  # type: ignore[attr-defined, no-any-return]


class VirtualLoop(asyncio.BaseEventLoop):
    """asyncio's loop without a selector: it receives no events from outside a run.

    As in asyncio, everything that is ready runs in turns. When nothing is ready, time advances
    to the next timer.
    """

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._numbers = itertools.count()
        self._clock = clock
        self._micros = 0
        self._seconds = 0.0
        """Since the start."""

        self._due: deque[asyncio.Handle] = deque()
        self._timers: list[_Timer] = []
        self._cancelled = 0
        """Cancelled timers among them."""

        self._turns = 0
        self._since = 0.0
        self._restless: Callable[[], None] | None = None
        self.set_task_factory(self._make)

    def when_restless(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` when work continues without time passing."""
        self._restless = tell

    def time(self) -> float:
        return self._seconds

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._due.append(handle)
        return handle

    call_soon_threadsafe = call_soon
    """Only signals come from outside, and they need not wake a loop that never sleeps."""

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._timers, timer)
        timer._scheduled = True
        return timer

    def close(self) -> None:
        super().close()
        self._due.clear()
        self._timers.clear()

    def _timer_handle_cancelled(self, timer: _Timer) -> None:
        if timer._scheduled:
            self._cancelled += 1

    def _run_once(self) -> None:
        """One turn: run everything that is ready now, and nothing that becomes ready meanwhile."""
        self._forget_cancelled()
        due, timers = self._due, self._timers
        self._count_turn()
        if not due and not self._stopping:  # type: ignore[attr-defined]
            self._jump()
        now = self._seconds + RESOLUTION
        while timers and timers[0]._when < now:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            due.append(timer)
        for _ in range(len(due)):
            handle = due.popleft()
            if not handle._cancelled:
                handle._run()

    def _forget_cancelled(self) -> None:
        timers = self._timers
        if len(timers) > CANCELLED_MAX and self._cancelled > len(timers) / 2:
            timers[:] = [timer for timer in timers if not timer._cancelled]
            heapq.heapify(timers)
            self._cancelled = 0
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
            self._cancelled -= 1

    def _count_turn(self) -> None:
        self._turns += 1
        if self._turns == TURNS_MAX:
            if self._restless is not None and self._seconds - self._since < 1.0:
                self._restless()
            self._turns, self._since = 0, self._seconds

    def _jump(self) -> None:
        """Advance time to the next timer."""
        if not self._timers:
            raise Deadlock(f"every task is blocked at {self._clock.now().isoformat()}")
        # Rounded up: a step of zero microseconds would loop for ever just before the timer.
        step = math.ceil((self._timers[0]._when - self._seconds) * 1e6)
        if step > 0:
            self._micros += step
            self._seconds = self._micros / 1e6
            self._clock.advance(timedelta(microseconds=step))

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


class SkewedClock:
    """A clock whose wall time can be set while its steady time goes on."""

    def __init__(self, base: Clock) -> None:
        self._base = base
        self.offset = timedelta(0)

    def jump(self, by: timedelta) -> None:
        self.offset += by

    def now(self) -> datetime:
        return self._base.now() + self.offset

    def steady(self) -> timedelta:
        return self._base.steady()
