"""Waiting for a change: woken by it, bounded by time, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bullpen.kit.clock import VirtualClock
from bullpen.services.signals import Signals
from bullpen.sim import virtual_time


def run(story: Callable[[Signals], Coroutine[Any, Any, None]]) -> float:
    """Tell a story; returns how many seconds it took."""
    clock = VirtualClock()
    start = clock.now()

    async def main() -> None:
        signals = Signals()
        await story(signals)
        assert not signals._waiting, "somebody is still waited for"

    virtual_time.run(clock, main())
    return (clock.now() - start).total_seconds()


def nothing() -> str | None:
    return None


def test_what_is_there_already_needs_no_waiting() -> None:
    async def story(signals: Signals) -> None:
        assert await signals.until(lambda: (), lambda: "here", 60) == "here"

    assert run(story) == 0


def test_a_change_is_seen_at_once() -> None:
    async def story(signals: Signals) -> None:
        found: list[str] = []
        waiting = asyncio.ensure_future(
            signals.until(lambda: ("key",), lambda: found[0] if found else None, 60)
        )
        await asyncio.sleep(5)
        found.append("news")
        signals.notify("key")
        assert await waiting == "news"

    assert run(story) == 5


def test_a_word_that_changes_nothing_does_not_prolong_the_wait() -> None:
    async def story(signals: Signals) -> None:
        async def nag() -> None:
            for _ in range(9):
                await asyncio.sleep(1)
                signals.notify("key")

        nagging = asyncio.ensure_future(nag())
        assert await signals.until(lambda: ("key",), nothing, 10) is None
        await nagging

    assert run(story) == 10


def test_time_up_looks_once_more() -> None:
    async def story(signals: Signals) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()

        def late() -> str | None:
            return "just in time" if loop.time() - start >= 3 else None

        assert await signals.until(lambda: ("key",), late, 3) == "just in time"

    assert run(story) == 3


def test_everybody_on_a_key_is_woken_and_nobody_else() -> None:
    async def story(signals: Signals) -> None:
        woken: list[str] = []

        async def wait(name: str, key: str) -> None:
            if await signals.until(lambda: (key,), lambda: name if open_ else None, 20):
                woken.append(name)

        open_: list[int] = []
        waiting = [asyncio.ensure_future(wait(name, key)) for name, key in (("a", "x"), ("b", "x"))]
        other = asyncio.ensure_future(signals.until(lambda: ("y",), nothing, 2))
        await asyncio.sleep(1)
        open_.append(1)
        signals.notify("x")
        await asyncio.gather(*waiting)
        assert woken == ["a", "b"]
        assert await other is None

    assert run(story) == 2


def test_the_keys_are_asked_again_because_what_matters_can_change() -> None:
    async def story(signals: Signals) -> None:
        step = 0

        def look() -> int | None:
            return step if step == 2 else None

        waiting = asyncio.ensure_future(signals.until(lambda: (f"key-{step}",), look, 60))
        for number in (0, 1):
            await asyncio.sleep(1)
            step += 1
            signals.notify(f"key-{number}")
        assert await waiting == 2

    assert run(story) == 2


def test_a_look_that_fails_ends_the_wait_with_its_error() -> None:
    async def story(signals: Signals) -> None:
        gone = False

        def look() -> str | None:
            if gone:
                raise KeyError("gone")
            return None

        waiting = asyncio.ensure_future(signals.until(lambda: ("key",), look, 60))
        await asyncio.sleep(1)
        gone = True
        signals.notify("key")
        with pytest.raises(KeyError):
            await waiting

    assert run(story) == 1


def test_whoever_stops_waiting_leaves_nothing_behind() -> None:
    async def story(signals: Signals) -> None:
        waiting = asyncio.ensure_future(signals.until(lambda: ("a", "b"), nothing, 60))
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        signals.notify("a")

    assert run(story) == 1
