"""The reconcile loop with its work queue.

The type of the function that determines the wait after failures.

The work queue: which keys need a pass, now or later. Takes ``now``, never sleeps. A key is
handed to one worker at a time; a key added meanwhile is handed out again afterwards. Failed
keys come back after a growing, bounded delay.

The reconcile loop: runs a reconciler on each due key, never concurrently on the same key.
Keys may be divided into lanes, each with a limited number of passes at the same time: what
waits in one lane delays no other.

There is no "requeue now": a pass ends because nothing is left to do until an event arrives
or time passes.

Both wait in steady time, which setting the wall clock does not change. After the wall clock
was set, every key that waits for its time gets a pass, because its time was computed from
the old one.

Keeps a long-running part of the service running when it fails unexpectedly.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

from bullpen.api.fields import Kind
from bullpen.errors import Conflict, LabError, Unavailable
from bullpen.kit.clock import Clock, WallTimes
from bullpen.runtime.faults import Faults

Retry = Callable[[int], timedelta]
"""The wait after this many consecutive failures; ``kit.backoff`` with a bound random source."""


Q = TypeVar("Q", bound=Hashable)


class WorkQueue(Generic[Q]):
    """Every time here is steady time, see ``kit.clock``."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._waiting: dict[Q, None] = {}
        self._working: set[Q] = set()
        self._again: set[Q] = set()
        self._later: list[tuple[timedelta, int, Q]] = []
        self._wake: dict[Q, timedelta] = {}
        self._failures: dict[Q, int] = {}
        self._sequence = 0

    def add(self, key: Q) -> None:
        """The key needs a pass."""
        if key in self._working:
            self._again.add(key)
        else:
            self._waiting.setdefault(key)

    def add_at(self, key: Q, when: timedelta) -> None:
        """The key needs a pass at ``when``, unless an earlier one is already set."""
        current = self._wake.get(key)
        if current is not None and current <= when:
            return
        self._wake[key] = when
        self._sequence += 1
        heapq.heappush(self._later, (when, self._sequence, key))

    def take(self, now: timedelta) -> Q | None:
        """The next due key, oldest first, or None if none is due."""
        while self._later and self._later[0][0] <= now:
            when, _, key = heapq.heappop(self._later)
            if self._wake.get(key) == when:
                del self._wake[key]
                self.add(key)
        if not self._waiting:
            return None
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._working.add(key)
        return key

    def put_back(self, key: Q) -> None:
        """The key was taken but not worked on; who took it adds it again."""
        self._working.remove(key)
        self._again.discard(key)

    def done(self, key: Q) -> None:
        """The worker succeeded. Forget past failures."""
        self._failures.pop(key, None)
        self._finish(key)

    def failed(self, key: Q, now: timedelta) -> timedelta:
        """The worker failed. Schedule a retry and return its time.

        A key added meanwhile is retried soon, but not at once: the addition may be a result of the
        failure itself, such as a write that was rolled back.
        """
        self._failures[key] = failures = self._failures.get(key, 0) + 1
        when = now + self._retry(1 if key in self._again else failures)
        self._again.discard(key)
        self.add_at(key, when)
        self._finish(key)
        return when

    def next_due(self) -> timedelta | None:
        """When the loop must wake even if nothing else happens."""
        return self._later[0][0] if self._later else None

    def add_waiting(self) -> None:
        """Every key that waits for its time needs a pass now."""
        for key in self._wake:
            self.add(key)
        self._wake.clear()
        self._later.clear()

    def _finish(self, key: Q) -> None:
        assert key in self._working, f"{key} was finished but never taken"
        self._working.remove(key)
        if key in self._again:
            self._again.remove(key)
            self._waiting.setdefault(key)


log = logging.getLogger("bullpen.runtime")

AGAIN = timedelta(milliseconds=10)
"""Delay of a key whose pass asked to be woken at a time in the past."""

CLOCK_CHECK = timedelta(seconds=1)
"""While a key waits for its time, whether the wall clock was set is checked this often."""

Q_contra = TypeVar("Q_contra", bound=Hashable, contravariant=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Success. ``wake_at`` is when to run the next pass if no event comes before."""

    wake_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes(Generic[Q]):
    """Divides the keys of a loop."""

    of: Callable[[Q], Hashable] = lambda _: None
    """The lane of a key, now; it may change."""

    passes_max: int = 1_000_000
    """Passes of one lane at the same time."""


class Reconciler(Protocol[Q_contra]):
    name: str

    async def reconcile(self, key: Q_contra) -> Outcome:
        """Bring the object of ``key`` one step closer to its spec.

        Level-triggered and idempotent: the caller does not say what changed and may call for no
        reason. Never called concurrently for one key.

        Raises ``Unavailable`` or ``Conflict`` to be retried with backoff. After any other
        ``LabError`` the key is not retried until something changes. Any other exception is a bug:
        logged with a traceback and retried.
        """


class ReconcileLoop(Generic[Q]):
    def __init__(
        self,
        reconciler: Reconciler[Q],
        *,
        clock: Clock,
        retry: Retry,
        workers: int = 1,
        lanes: Lanes[Q] | None = None,
        faults: Faults | None = None,
        subject: Callable[[Q], Kind | None] = lambda _: None,
    ) -> None:
        """``workers``: passes of different keys at the same time, so that they share commits.

        A pass that fails unexpectedly is recorded in ``faults`` under the object that
        ``subject`` finds for its key, besides being logged and retried.
        """
        self._reconciler = reconciler
        self._faults = faults
        self._subject = subject
        self._workers = workers
        self._lanes: Lanes[Q] = lanes or Lanes()
        self._passes: Counter[Hashable] = Counter()
        """Running passes by lane."""

        self._parked: dict[Hashable, dict[Q, None]] = {}
        """Due keys whose lane is full, in the order in which they became due."""

        self._clock = clock
        self._queue: WorkQueue[Q] = WorkQueue(retry)
        self._news = asyncio.Event()
        self._wall = WallTimes(clock)
        self._epoch = self._wall.epoch

    def add(self, key: Q) -> None:
        self._queue.add(key)
        self._news.set()

    def add_at(self, key: Q, when: datetime) -> None:
        """Schedule a pass at ``when``; several calls before that result in one pass."""
        now, steady = self._clock.now(), self._clock.steady()
        self._queue.add_at(key, steady + max(when - now, timedelta(0)))
        self._news.set()

    async def run(self) -> None:
        """Work until cancelled."""
        slots = asyncio.Semaphore(self._workers)
        async with asyncio.TaskGroup() as tasks:
            while True:
                await slots.acquire()
                key = await self._next()
                lane = self._lanes.of(key)
                if self._workers == 1:
                    await self._pass(key)
                    slots.release()
                elif self._passes[lane] >= self._lanes.passes_max:
                    self._queue.put_back(key)
                    self._parked.setdefault(lane, {})[key] = None
                    slots.release()
                else:
                    self._passes[lane] += 1
                    tasks.create_task(self._side_pass(key, lane, slots))

    async def _next(self) -> Q:
        """Wait for the next due key."""
        while True:
            self._notice_clock_step()
            key = self._queue.take(self._clock.steady())
            if key is not None:
                return key
            await self._wait()

    def _notice_clock_step(self) -> None:
        epoch = self._wall.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self._queue.add_waiting()

    async def _side_pass(self, key: Q, lane: Hashable, slots: asyncio.Semaphore) -> None:
        """Run a concurrent pass; afterwards the loop must look again, since this key may be due."""
        await self._pass(key)
        self._leave(lane)
        slots.release()
        self._news.set()

    def _leave(self, lane: Hashable) -> None:
        """A pass of the lane has ended: a key that waits for that is due again."""
        self._passes[lane] -= 1
        if not self._passes[lane]:
            del self._passes[lane]
        parked = self._parked.get(lane)
        if parked:
            key = next(iter(parked))
            del parked[key]
            self._queue.add(key)
            if not parked:
                del self._parked[lane]

    async def _wait(self) -> None:
        self._news.clear()
        due = self._queue.next_due()
        if due is None:
            await self._news.wait()
            return
        seconds = max(0.0, min(due - self._clock.steady(), CLOCK_CHECK).total_seconds())
        # A timer that sets the event is much cheaper than a wait with a timeout.
        alarm = asyncio.get_running_loop().call_later(seconds, self._news.set)
        try:
            await self._news.wait()
        finally:
            alarm.cancel()

    async def _pass(self, key: Q) -> None:
        name, epoch = self._reconciler.name, self._wall.epoch
        try:
            outcome = await self._reconciler.reconcile(key)
        except (Unavailable, Conflict) as error:
            steady = self._clock.steady()
            delay = self._queue.failed(key, steady) - steady
            facts = {"key": key, "controller": name, "cause": str(error), "retry": delay}
            log.debug("pass will be retried", extra=facts)
        except LabError as error:
            self._queue.done(key)
            log.error("pass refused", extra={"key": key, "controller": name, "cause": str(error)})  # noqa: TRY400
        except Exception as error:
            self._queue.failed(key, self._clock.steady())
            log.exception("pass failed", extra={"key": key, "controller": name})
            self._record(key, error)
        else:
            self._queue.done(key)
            self._record(key, None)
            if outcome.wake_at is not None:
                now = self._clock.now()
                clock_set = self._wall.epoch != epoch
                # Without a delay, a pass that left something due would run in a busy loop and
                # starve others.
                soon = clock_set or outcome.wake_at <= now
                self.add_at(key, now + AGAIN if soon else outcome.wake_at)

    def _record(self, key: Q, error: Exception | None) -> None:
        """Record on the object of ``key`` whether its pass failed."""
        if self._faults is None or (error is None and not self._faults.all()):
            return
        value = self._subject(key)
        if value is None:
            return
        if error is None:
            self._faults.clear(self._reconciler.name, value)
        else:
            self._faults.report(self._reconciler.name, value, error)


async def supervise(part: str, run: Callable[[], Awaitable[None]], *, retry: Retry) -> None:
    """Run ``run`` until cancelled; after an exception, start it again with backoff.

    A defect in one part must not end the process: every restart would hit the same defect.
    """
    failures = 0
    while True:
        try:
            await run()
        except Exception:
            failures += 1
            delay = retry(failures)
            facts = {"key": part, "failures": failures, "retry": delay}
            log.exception("part failed and is started again", extra=facts)
            await asyncio.sleep(delay.total_seconds())
        else:
            return
