"""The reconcile loop: runs a reconciler on each due key, never concurrently on the same key.

There is no "requeue now": a pass ends because nothing is left to do until an event arrives
or time passes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

from bullpen.api.fields import Kind
from bullpen.errors import Conflict, LabError, Unavailable
from bullpen.kit.clock import Clock
from bullpen.runtime.faults import Faults
from bullpen.runtime.queue import WorkQueue
from bullpen.runtime.retry import Retry

log = logging.getLogger("bullpen.runtime")

AGAIN = timedelta(milliseconds=10)
"""Delay of a key whose pass asked to be woken at a time in the past."""

Q = TypeVar("Q", bound=Hashable)
Q_contra = TypeVar("Q_contra", bound=Hashable, contravariant=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Success. ``wake_at`` is when to run the next pass if no event comes before."""

    wake_at: datetime | None = None


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
        self._clock = clock
        self._queue: WorkQueue[Q] = WorkQueue(retry)
        self._news = asyncio.Event()

    def add(self, key: Q) -> None:
        self._queue.add(key)
        self._news.set()

    def add_at(self, key: Q, when: datetime) -> None:
        """Schedule a pass at ``when``; several calls before that result in one pass."""
        self._queue.add_at(key, when)
        self._news.set()

    async def run(self) -> None:
        """Work until cancelled."""
        slots = asyncio.Semaphore(self._workers)
        async with asyncio.TaskGroup() as tasks:
            while True:
                await slots.acquire()
                key = await self._next()
                if self._workers == 1:
                    await self._pass(key)
                    slots.release()
                else:
                    tasks.create_task(self._side_pass(key, slots))

    async def _next(self) -> Q:
        """Wait for the next due key."""
        while (key := self._queue.take(self._clock.now())) is None:
            await self._wait()
        return key

    async def _side_pass(self, key: Q, slots: asyncio.Semaphore) -> None:
        """Run a concurrent pass; afterwards the loop must look again, since this key may be due."""
        await self._pass(key)
        slots.release()
        self._news.set()

    async def _wait(self) -> None:
        self._news.clear()
        due = self._queue.next_due()
        if due is None:
            await self._news.wait()
            return
        seconds = max(0.0, (due - self._clock.now()).total_seconds())
        # A timer that sets the event is much cheaper than a wait with a timeout.
        alarm = asyncio.get_running_loop().call_later(seconds, self._news.set)
        try:
            await self._news.wait()
        finally:
            alarm.cancel()

    async def _pass(self, key: Q) -> None:
        name = self._reconciler.name
        try:
            outcome = await self._reconciler.reconcile(key)
        except (Unavailable, Conflict) as error:
            when = self._queue.failed(key, self._clock.now())
            facts = {"key": key, "controller": name, "cause": str(error), "retry": when}
            log.debug("pass will be retried", extra=facts)
        except LabError as error:
            self._queue.done(key)
            log.error("pass refused", extra={"key": key, "controller": name, "cause": str(error)})  # noqa: TRY400
        except Exception as error:
            self._queue.failed(key, self._clock.now())
            log.exception("pass failed", extra={"key": key, "controller": name})
            self._record(key, error)
        else:
            self._queue.done(key)
            self._record(key, None)
            if outcome.wake_at is not None:
                now = self._clock.now()
                # Without a delay, a pass that left something due would run in a busy loop and
                # starve others.
                self._queue.add_at(key, outcome.wake_at if outcome.wake_at > now else now + AGAIN)

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
