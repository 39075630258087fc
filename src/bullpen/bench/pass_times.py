"""Processor time of the passes of a controller, without what runs while they wait."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Generator
from dataclasses import replace
from typing import Any

from bullpen.app.lab import Lab, MakeController
from bullpen.runtime.controller import Controller
from bullpen.runtime.loop import Outcome, Reconciler


class PassTimes:
    """The passes of the controllers that it was told to measure."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.count = 0

    def clear(self) -> None:
        self.seconds, self.count = 0.0, 0

    @property
    def mean(self) -> float:
        """Seconds of one pass."""
        return self.seconds / max(1, self.count)

    def of(self, make: MakeController) -> MakeController:
        """The same controller, measured."""

        def measured(lab: Lab) -> Controller[Any]:
            made = make(lab)
            return replace(made, reconciler=_Measured(made.reconciler, self))

        return measured


class _Measured:
    """A reconciler that says how long its passes take."""

    def __init__(self, inner: Reconciler[Any], times: PassTimes) -> None:
        self.name = inner.name
        self._inner = inner
        self._times = times

    async def reconcile(self, key: Any) -> Outcome:
        self._times.count += 1
        return await _Steps(self._inner.reconcile(key), self._times)


class _Steps(Awaitable[Outcome]):
    """Runs a pass, and measures each step between two of its waits."""

    def __init__(self, work: Awaitable[Outcome], times: PassTimes) -> None:
        self._work = work
        self._times = times

    def __await__(self) -> Generator[Any, Any, Outcome]:
        steps: Any = self._work.__await__()
        sent: Any = None
        failed: BaseException | None = None
        while True:
            began = time.thread_time()
            try:
                waits = steps.send(sent) if failed is None else steps.throw(failed)
            except StopIteration as done:
                outcome: Outcome = done.value
                return outcome
            finally:
                self._times.seconds += time.thread_time() - began
            sent = failed = None
            try:
                sent = yield waits
            except BaseException as error:
                failed = error
