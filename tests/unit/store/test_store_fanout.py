"""Who is handed what, and at what cost."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.errors import Gone
from bullpen.store.base import Change, Verb
from bullpen.store.fanout import WOKEN_AT_ONCE_MAX, Fanout, Watcher
from bullpen.store.journaled import MemoryStore

texts = st.text("a/b", max_size=6)


def changes(*keys: str, first: int = 1) -> list[Change]:
    return [
        Change(revision, key, Verb.CREATED, b"", None)
        for revision, key in enumerate(keys, start=first)
    ]


def fanout(watches_max: int = 100) -> Fanout:
    return Fanout(revision=0, watches_max=watches_max)


def buffered(watcher: Watcher) -> list[str]:
    """What the watcher would return now, without waiting."""

    async def read() -> list[str]:
        try:
            async with asyncio.timeout(0):
                return [change.key for change in await watcher.next()]
        except TimeoutError:
            return []

    return asyncio.run(read())


@given(st.lists(texts, min_size=1, max_size=8), st.lists(texts, min_size=1, max_size=8))
def test_each_watcher_is_handed_exactly_what_begins_with_its_prefix(
    prefixes: list[str], keys: list[str]
) -> None:
    hub = fanout()
    watchers = [hub.watch(prefix, [], 100) for prefix in prefixes]
    hub.dispatch(changes(*keys))
    for watcher in watchers:
        expected = [key for key in keys if key.startswith(watcher.prefix)]
        assert buffered(watcher) == expected


async def test_watchers_of_one_prefix_share_one_tuple() -> None:
    hub = fanout()
    watchers = [hub.watch("a/b/", [], 100) for _ in range(3)]
    hub.dispatch(changes("a/b/1", "c", "a/b/2"))
    first, *others = [await watcher.next() for watcher in watchers]
    assert all(other is first for other in others)


async def test_a_change_looks_only_at_the_prefixes_of_its_own_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = fanout(watches_max=2000)
    for number in range(1000):
        hub.watch(f"a/b/{number}/", [], 100)
    mine = hub.watch("a/b/7/", [], 100)
    fed: list[Watcher] = []
    monkeypatch.setattr(Watcher, "feed", lambda self, _: fed.append(self))
    hub.dispatch(changes("a/b/7/x"))
    assert [watcher.prefix for watcher in fed] == ["a/b/7/", "a/b/7/"]
    assert mine in fed


async def test_watchers_that_left_leave_nothing_behind() -> None:
    hub = fanout()
    empty = dict(vars(hub))
    watchers = [hub.watch(prefix, [], 100) for prefix in ("", "a/", "a/b", "a/b", "a/bc/d")]
    for watcher in watchers:
        watcher.close()
    assert vars(hub) == empty


async def test_one_batch_that_is_larger_than_the_buffer_cuts_the_watcher() -> None:
    hub = fanout()
    watcher = hub.watch("a/", [], 2)
    hub.dispatch(changes("b/1", "a/1", "a/2", "a/3"))
    with pytest.raises(Gone):
        await watcher.next()
    assert watcher.position == 1


async def test_a_watcher_that_is_cut_while_it_waits_is_woken() -> None:
    hub = fanout()
    watcher = hub.watch("a/", [], 1)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(_error(watcher))
        await asyncio.sleep(0)
        hub.dispatch(changes("a/1", "a/2"))
    assert isinstance(waiting.result(), Gone)


async def _error(watcher: Watcher) -> Exception | None:
    try:
        await watcher.next()
    except Gone as error:
        return error
    return None


async def test_a_watch_has_one_reader() -> None:
    out = fanout()
    watcher = out.watch("a/", [], 1)
    async with asyncio.TaskGroup() as group:
        group.create_task(watcher.next())
        await asyncio.sleep(0)
        with pytest.raises(AssertionError, match="one reader"):
            await watcher.next()
        out.dispatch(changes("a/1"))


def test_a_writer_does_not_wait_for_a_thousand_watchers() -> None:
    """It continues when a few of them have been woken, and all of them are told."""
    order: list[str] = []

    async def follow(store: MemoryStore) -> None:
        watch = store.watch("a/", since=0)
        await watch.next()
        order.append("watcher")
        watch.close()

    async def run() -> None:
        store = MemoryStore()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(1_000):
                tasks.create_task(follow(store))
            await asyncio.sleep(0)
            await store.put("a/x", lambda revision: b"value", expect=0)
            order.append("writer")
        await store.close()

    asyncio.run(run())
    assert order.index("writer") <= 2 * WOKEN_AT_ONCE_MAX
    assert order.count("watcher") == 1_000
