"""What every store promises to its watchers."""

from __future__ import annotations

import asyncio

import pytest

from bullpen.errors import (
    Gone,
    TooManyRequests,
)
from bullpen.store.base import ABSENT, Change, Store
from bullpen.store.history import Limits
from support.store_helpers import (
    LEASE,
    PREFIX,
    A,
    B,
    C,
    OpenStore,
    create,
    ended,
    overwrite,
    read,
    text,
)


async def test_a_watch_can_begin_at_every_retained_revision(store: Store) -> None:
    await create(store, A, B)
    await overwrite(store, A, 3)
    await store.delete(B, text("last"), expect=2)
    for since in range(store.revision + 1):
        watch = store.watch("", since=since)
        changes = await read(watch, store.revision - since) if since < store.revision else []
        assert [change.revision for change in changes] == list(range(since + 1, 7))
        watch.close()


async def test_a_watch_joins_the_past_to_the_present_without_a_seam(store: Store) -> None:
    await overwrite(store, A, 5)
    pending = [store.put(key, text("pending"), expect=ABSENT) for key in (B, C)]
    watch = store.watch("", since=2)
    await asyncio.gather(*pending)
    await overwrite(store, A, 2)
    changes = await read(watch, 8)
    assert [change.revision for change in changes] == list(range(3, 11))


WATCHED = (A, LEASE, B, C, "lab/exporters/defaulting/d", "lab", "lab/exporters")


@pytest.mark.parametrize(
    "prefix",
    [
        pytest.param("", id="everything"),
        pytest.param("lab/", id="a group"),
        pytest.param(PREFIX, id="a kind"),
        pytest.param("lab/exporters/default/", id="a namespace"),
        pytest.param("lab/exporters/default", id="a prefix that ends within a namespace"),
        pytest.param("lab/e", id="a prefix that ends within a kind"),
        pytest.param(A, id="one key"),
    ],
)
async def test_a_watch_sees_exactly_what_is_under_its_prefix(store: Store, prefix: str) -> None:
    live = store.watch(prefix, since=0)
    await create(store, *WATCHED)
    expected = [key for key in WATCHED if key.startswith(prefix)]
    assert [change.key for change in await read(live, len(expected))] == expected
    late = store.watch(prefix, since=0)
    assert [change.key for change in await late.next()] == expected


async def test_many_watchers_each_see_every_change_once_in_order(store: Store) -> None:
    watches = [store.watch(PREFIX, since=0) for _ in range(20)]
    await create(store, A, B)
    await overwrite(store, A, 10)
    for watch in watches:
        assert [change.revision for change in await read(watch, 12)] == list(range(1, 13))


async def test_next_waits_for_a_change_under_the_prefix(store: Store) -> None:
    watch = store.watch(PREFIX, since=0)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(watch.next())
        await create(store, LEASE)
        assert not waiting.done()
        await create(store, A)
    assert [change.key for change in waiting.result()] == [A]


async def test_a_read_that_was_cancelled_loses_nothing(store: Store) -> None:
    watch = store.watch(PREFIX, since=0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await watch.next()
    await create(store, A)
    assert [change.key for change in await watch.next()] == [A]


async def test_a_nudge_ends_one_wait_and_takes_nothing(store: Store) -> None:
    watch = store.watch(PREFIX, since=0)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(watch.next())
        await asyncio.sleep(0)
        watch.nudge()
    assert waiting.result() == ()
    watch.nudge()
    await create(store, A)
    assert [change.key for change in await watch.next()] == [A]
    assert await watch.next() == (), "the second nudge is still owed"


async def test_an_idle_watch_stands_at_the_newest_revision_of_the_whole_store(
    store: Store,
) -> None:
    watch = store.watch(PREFIX, since=0)
    await create(store, LEASE)
    assert watch.position == 1
    await create(store, A, B)
    await create(store, "lab/leases/default/b")
    assert watch.position == 1
    assert len(await watch.next()) == 2
    assert watch.position == store.revision == 4


async def test_a_slow_watcher_is_cut_and_nobody_else_notices(store: Store) -> None:
    slow = store.watch(PREFIX, since=0, buffer_max=3)
    brisk = store.watch(PREFIX, since=0, buffer_max=3)
    seen: list[Change] = []
    for number in range(5):
        await create(store, f"{PREFIX}default/{number}")
        if number == 0:
            await slow.next()
        seen += await brisk.next()
    assert [change.revision for change in seen] == [1, 2, 3, 4, 5]
    for _ in range(2):
        with pytest.raises(Gone):
            await slow.next()
    assert slow.position == 1
    await create(store, A)
    assert slow.position == 1


async def test_a_watcher_may_leave_as_many_unread_as_its_buffer_holds(store: Store) -> None:
    watch = store.watch(PREFIX, since=0, buffer_max=3)
    for number in range(3):
        await create(store, f"{PREFIX}default/{number}")
    assert len(await watch.next()) == 3


async def test_what_was_missed_does_not_count_towards_the_buffer(store: Store) -> None:
    await overwrite(store, A, 9)
    watch = store.watch(PREFIX, since=0, buffer_max=1)
    await overwrite(store, A, 1)
    assert len(await watch.next()) == 11


async def test_a_closed_watch_ends_and_makes_room(open_store: OpenStore) -> None:
    store = await open_store(Limits(watches_max=1))
    watch = store.watch(PREFIX, since=0)
    with pytest.raises(TooManyRequests):
        store.watch("", since=0)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ended(watch))
        await asyncio.sleep(0)
        watch.close()
        watch.close()
    assert waiting.result()
    await create(store, A)
    assert await ended(watch)
    assert watch.position == 0
    assert [change.key for change in await store.watch(PREFIX, since=0).next()] == [A]
