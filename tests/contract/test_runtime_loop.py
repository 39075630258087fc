"""The reconcile loop: passes when something happens or time comes, and never two for one key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any

import pytest

from bullpen.errors import Conflict, Invalid, Unavailable
from bullpen.kit.clock import EPOCH, VirtualClock
from bullpen.runtime.loop import AGAIN, Outcome, ReconcileLoop
from bullpen.sim import virtual_time
from bullpen.sim.virtual_time import SkewedClock

SECOND = timedelta(seconds=1)


class Recorder:
    """A reconciler that does as it is told and notes when it was called."""

    name = "recorder"

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._start = clock.now()
        self.passes: list[tuple[str, float]] = []
        self.results: list[Outcome | Exception] = []
        self.takes = 0.0
        self.at_once = 0
        self.at_once_max = 0

    async def reconcile(self, key: str) -> Outcome:
        self.passes.append((key, (self._clock.now() - self._start).total_seconds()))
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        await asyncio.sleep(self.takes)
        self.at_once -= 1
        result = self.results.pop(0) if self.results else Outcome()
        if isinstance(result, Exception):
            raise result
        return result


def told(
    story: Callable[[ReconcileLoop[str], Recorder], Coroutine[Any, Any, None]],
    *,
    workers: int = 1,
) -> list[tuple[str, float]]:
    """What passes a story led to."""
    clock = VirtualClock()
    recorder = Recorder(clock)
    loop: ReconcileLoop[str] = ReconcileLoop(
        recorder,
        clock=clock,
        retry=lambda failures: SECOND * 2 ** (failures - 1),
        workers=workers,
    )

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(loop.run())
            await story(loop, recorder)
            task.cancel()

    virtual_time.run(clock, main())
    return recorder.passes


def soon(clock: VirtualClock, seconds: float) -> datetime:
    return clock.now() + timedelta(seconds=seconds)


def test_without_news_nothing_happens() -> None:
    async def story(loop: ReconcileLoop[str], recorder: Recorder) -> None:
        await asyncio.sleep(1000)

    assert told(story) == []


def test_news_of_one_moment_make_one_pass() -> None:
    async def story(loop: ReconcileLoop[str], recorder: Recorder) -> None:
        for _ in range(5):
            loop.add("a")
        await asyncio.sleep(10)

    assert told(story) == [("a", 0.0)]


def test_news_during_a_pass_make_another_after_it() -> None:
    async def story(loop: ReconcileLoop[str], recorder: Recorder) -> None:
        recorder.takes = 3.0
        loop.add("a")
        await asyncio.sleep(1)
        loop.add("a")
        await asyncio.sleep(10)
        assert recorder.at_once_max == 1

    assert told(story) == [("a", 0.0), ("a", 3.0)]


def test_a_pass_can_ask_to_be_woken_and_is_unless_news_come_first() -> None:
    async def story(loop: ReconcileLoop[str], recorder: Recorder) -> None:
        recorder.results = [Outcome(wake_at=soon(recorder._clock, 60))]
        loop.add("a")
        await asyncio.sleep(100)

    assert told(story) == [("a", 0.0), ("a", 60.0)]


def test_a_pass_that_asks_to_be_woken_in_the_past_lets_others_go_on() -> None:
    async def story(loop: ReconcileLoop[str], recorder: Recorder) -> None:
        recorder.results = [Outcome(wake_at=EPOCH - SECOND)] * 3
        loop.add("a")
        await asyncio.sleep(1)

    at = [seconds for _, seconds in told(story)]
    assert at == pytest.approx([n * AGAIN.total_seconds() for n in range(4)])


def test_many_wishes_for_later_make_one_pass_then() -> None:
    async def story(loop: ReconcileLoop[str], recorder: Recorder) -> None:
        for seconds in (5, 9, 7):
            loop.add_at("a", soon(recorder._clock, seconds))
        await asyncio.sleep(100)

    assert told(story) == [("a", 5.0)]


def test_what_may_pass_is_retried_ever_later_and_then_forgiven() -> None:
    async def story(loop: ReconcileLoop[str], recorder: Recorder) -> None:
        recorder.results = [Unavailable("away"), Conflict("moved"), Unavailable("away")]
        loop.add("a")
        await asyncio.sleep(100)
        recorder.results = [Conflict("moved")]
        loop.add("a")
        await asyncio.sleep(100)

    assert told(story) == [
        ("a", 0.0),
        ("a", 1.0),
        ("a", 3.0),
        ("a", 7.0),
        ("a", 100.0),
        ("a", 101.0),
    ]


def test_what_will_not_pass_waits_for_news() -> None:
    async def story(loop: ReconcileLoop[str], recorder: Recorder) -> None:
        recorder.results = [Invalid("never")]
        loop.add("a")
        await asyncio.sleep(1000)
        loop.add("a")
        await asyncio.sleep(1)

    assert told(story) == [("a", 0.0), ("a", 1000.0)]


def test_a_bug_in_one_pass_stops_neither_the_key_nor_the_others(
    unexpected_errors: list[str],
) -> None:
    async def story(loop: ReconcileLoop[str], recorder: Recorder) -> None:
        recorder.results = [ZeroDivisionError()]
        loop.add("a")
        loop.add("b")
        await asyncio.sleep(10)

    assert told(story) == [("a", 0.0), ("b", 0.0), ("a", 1.0)]
    assert len(unexpected_errors) == 1
    unexpected_errors.clear()


def test_several_workers_take_different_keys_and_never_the_same() -> None:
    async def story(loop: ReconcileLoop[str], recorder: Recorder) -> None:
        recorder.takes = 3.0
        for key in "abc":
            loop.add(key)
        await asyncio.sleep(1)
        loop.add("a")
        await asyncio.sleep(20)
        assert recorder.at_once_max == 2

    assert told(story, workers=2) == [("a", 0.0), ("b", 0.0), ("c", 3.0), ("a", 3.0)]


def told_with_steps(
    story: Callable[[ReconcileLoop[str], Recorder, SkewedClock], Coroutine[Any, Any, None]],
    *,
    workers: int = 1,
) -> list[tuple[str, float]]:
    """What passes a story led to in which the wall clock is set; their times are real ones."""
    base = VirtualClock()
    clock, recorder = SkewedClock(base), Recorder(base)
    loop: ReconcileLoop[str] = ReconcileLoop(
        recorder, clock=clock, retry=lambda failures: SECOND * failures, workers=workers
    )

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(loop.run())
            await story(loop, recorder, clock)
            task.cancel()

    virtual_time.run(base, main())
    return recorder.passes


@pytest.mark.parametrize("step", [timedelta(hours=1), timedelta(hours=-1), SECOND])
def test_a_clock_that_is_set_starts_a_pass_of_every_waiting_key_within_a_second(
    step: timedelta,
) -> None:
    """The loop slept once on a difference of wall times, however the clock was set meanwhile."""

    async def story(loop: ReconcileLoop[str], recorder: Recorder, clock: SkewedClock) -> None:
        loop.add_at("a", clock.now() + timedelta(minutes=30))
        await asyncio.sleep(10.5)
        clock.jump(step)
        await asyncio.sleep(10)

    assert told_with_steps(story) == [("a", 11.0)]


def test_many_small_corrections_of_the_clock_add_up_to_a_step() -> None:
    async def story(loop: ReconcileLoop[str], recorder: Recorder, clock: SkewedClock) -> None:
        loop.add_at("a", clock.now() + timedelta(minutes=2))
        for _ in range(99):
            await asyncio.sleep(1)
            clock.jump(timedelta(milliseconds=5))

    passes = told_with_steps(story)
    assert [key for key, _ in passes] == ["a"]


@pytest.mark.parametrize("workers", [1, 4])
def test_a_clock_that_is_set_during_a_pass_is_noticed_after_it(workers: int) -> None:
    """The pass computed when to look again from the old time."""

    async def story(loop: ReconcileLoop[str], recorder: Recorder, clock: SkewedClock) -> None:
        recorder.takes = 0.2
        recorder.results = [Outcome(wake_at=clock.now() + timedelta(seconds=5))]
        loop.add("a")
        await asyncio.sleep(0.1)
        clock.jump(timedelta(hours=-1))
        loop.add("b")
        await asyncio.sleep(5)

    first, second = [at for key, at in told_with_steps(story, workers=workers) if key == "a"]
    assert first == 0.0
    assert second < 1.0
