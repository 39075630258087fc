"""What every store promises about writing and closing, one sentence per test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bullpen.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    LabError,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from bullpen.store.base import ABSENT, WATCH_BUFFER_MAX, Change, Entry, Store, Verb
from bullpen.store.history import DEFAULT_LIMITS, Limits
from support.store_helpers import (
    PREFIX,
    A,
    B,
    C,
    OpenStore,
    create,
    ended,
    held,
    never,
    read,
    text,
)


async def test_a_new_store_is_empty_at_revision_zero(store: Store) -> None:
    assert (store.revision, store.oldest) == (0, 0)
    assert store.get(A) is None
    assert store.head(A) is None
    assert store.scan("").entries == ()


async def test_a_write_is_told_its_revision_and_returns_what_is_kept(store: Store) -> None:
    entry = await store.put(A, text("new"), expect=ABSENT)
    assert entry == Entry(A, b"new@1", 1)
    assert store.get(A) == store.head(A) == entry
    assert store.revision == 1


async def test_a_deletion_returns_the_last_state_restamped_and_leaves_nothing(
    store: Store,
) -> None:
    await create(store, A)
    assert await store.delete(A, text("last"), expect=1) == Entry(A, b"last@2", 2)
    assert store.get(A) is None
    assert store.head(A) is None
    assert store.revision == 2


Write = Callable[[Store], Awaitable[Entry]]


@pytest.mark.parametrize(
    ("write", "error"),
    [
        pytest.param(
            lambda s: s.put(A, never, expect=ABSENT), AlreadyExists, id="creating what exists"
        ),
        pytest.param(lambda s: s.put(A, never, expect=1), Conflict, id="updating a past state"),
        pytest.param(lambda s: s.put(A, never, expect=99), Conflict, id="updating a future state"),
        pytest.param(lambda s: s.put(B, never, expect=1), NotFound, id="updating what is missing"),
        pytest.param(lambda s: s.delete(A, never, expect=1), Conflict, id="deleting a past state"),
        pytest.param(
            lambda s: s.delete(A, never, expect=ABSENT), Conflict, id="deleting without a revision"
        ),
        pytest.param(
            lambda s: s.delete(B, never, expect=1), NotFound, id="deleting what is missing"
        ),
        pytest.param(
            lambda s: s.put("lab/\ud800", never, expect=ABSENT),
            BadRequest,
            id="creating a key that is not text",
        ),
        pytest.param(
            lambda s: s.put("", never, expect=ABSENT), BadRequest, id="creating the empty key"
        ),
    ],
)
async def test_the_call_itself_refuses(store: Store, write: Write, error: type[LabError]) -> None:
    await create(store, A)
    await store.put(A, text("second"), expect=1)
    with pytest.raises(error):
        write(store)
    assert store.revision == 2
    assert (await store.put(B, text("next"), expect=ABSENT)).revision == 3


async def test_the_comparison_is_with_what_was_accepted_not_with_what_is_durable(
    store: Store,
) -> None:
    first = store.put(A, text("one"), expect=ABSENT)
    with pytest.raises(AlreadyExists):
        store.put(A, never, expect=ABSENT)
    second = store.put(A, text("two"), expect=1)
    with pytest.raises(Conflict):
        store.put(A, never, expect=1)
    assert [(await first).revision, (await second).revision] == [1, 2]


async def test_an_encode_that_raises_leaves_nothing_behind(store: Store) -> None:
    def broken(revision: int) -> bytes:
        raise ValueError(revision)

    with pytest.raises(ValueError, match="1"):
        store.put(A, broken, expect=ABSENT)
    assert store.head(A) is None
    assert (await create(store, A))[0].revision == 1


# Order and durability


async def test_every_write_has_its_own_revision_in_the_order_of_the_calls(store: Store) -> None:
    entries = await create(store, *(f"{PREFIX}default/{number:03}" for number in range(100)))
    assert [entry.revision for entry in entries] == list(range(1, 101))
    assert store.revision == 100


async def test_writes_are_acknowledged_in_the_order_they_were_accepted(store: Store) -> None:
    acknowledged: list[int] = []
    writes = [
        asyncio.ensure_future(store.put(f"{PREFIX}{number}", text("x"), expect=ABSENT))
        for number in range(20)
    ]
    for write in reversed(writes):
        write.add_done_callback(lambda done: acknowledged.append(done.result().revision))
    await asyncio.gather(*writes)
    assert acknowledged == list(range(1, 21))


async def test_until_it_is_durable_only_head_shows_a_write(store: Store) -> None:
    watch = store.watch("", since=0)
    write = store.put(A, text("new"), expect=ABSENT)
    assert store.head(A) == Entry(A, b"new@1", 1)
    assert store.get(A) is None
    assert store.scan("").entries == ()
    assert (store.revision, watch.position) == (0, 0)
    await write
    assert store.get(A) == store.head(A)
    assert held(store) == {A: b"new@1"}


async def test_until_it_is_durable_only_head_misses_a_deletion(store: Store) -> None:
    await create(store, A)
    deletion = store.delete(A, text("last"), expect=1)
    assert store.head(A) is None
    assert store.get(A) is not None
    await deletion
    assert store.get(A) is None


async def test_whatever_a_watcher_sees_has_been_acknowledged(store: Store) -> None:
    watch = store.watch("", since=0)
    writes = [
        asyncio.ensure_future(store.put(f"{PREFIX}{number}", text("x"), expect=ABSENT))
        for number in range(50)
    ]
    seen = 0
    while seen < len(writes):
        for change in await watch.next():
            seen += 1
            assert writes[change.revision - 1].done()
            assert change.revision <= store.revision


async def test_writes_can_build_on_accepted_ones_in_one_breath(store: Store) -> None:
    writes = [
        store.put(A, text("created"), expect=ABSENT),
        store.put(A, text("updated"), expect=1),
        store.delete(A, text("deleted"), expect=2),
        store.put(A, text("recreated"), expect=ABSENT),
    ]
    assert store.head(A) == Entry(A, b"recreated@4", 4)
    await asyncio.gather(*writes)
    assert await read(store.watch("", since=0), 4) == [
        Change(1, A, Verb.CREATED, b"created@1", None),
        Change(2, A, Verb.UPDATED, b"updated@2", b"created@1"),
        Change(3, A, Verb.DELETED, b"deleted@3", b"updated@2"),
        Change(4, A, Verb.CREATED, b"recreated@4", None),
    ]


async def test_to_stop_waiting_does_not_undo_a_write(store: Store) -> None:
    write = asyncio.ensure_future(store.put(A, text("new"), expect=ABSENT))
    write.cancel()
    await create(store, B)
    assert held(store) == {A: b"new@1", B: b"new@2"}


async def test_too_many_writes_at_once_are_told_to_back_off(open_store: OpenStore) -> None:
    store = await open_store(Limits(pending_count_max=2))
    writes = [store.put(key, text("new"), expect=ABSENT) for key in (A, B)]
    with pytest.raises(TooManyRequests):
        store.put(C, never, expect=ABSENT)
    await asyncio.gather(*writes)
    assert (await create(store, C))[0].revision == 3


async def test_too_many_bytes_at_once_are_told_to_back_off(open_store: OpenStore) -> None:
    store = await open_store(Limits(pending_bytes_max=10))
    write = store.put(A, lambda _: bytes(10), expect=ABSENT)
    with pytest.raises(TooManyRequests):
        store.put(B, never, expect=ABSENT)
    await write
    await store.put(B, lambda _: bytes(9), expect=ABSENT)


# Closing


async def test_closing_makes_every_accepted_write_durable_first(store: Store) -> None:
    watch = store.watch("", since=0)
    writes = [store.put(key, text("new"), expect=ABSENT) for key in (A, B)]
    await store.close()
    assert [(await write).revision for write in writes] == [1, 2]
    assert [change.revision for change in await watch.next()] == [1, 2]
    assert await ended(watch)


async def test_a_closed_store_answers_reads_and_nothing_else(store: Store) -> None:
    await create(store, A)
    waiting = store.watch(PREFIX, since=1)
    async with asyncio.TaskGroup() as group:
        end = group.create_task(ended(waiting))
        group.create_task(store.close())
        group.create_task(store.close())
    await store.close()
    assert end.result()
    assert held(store) == {A: b"new@1"}
    with pytest.raises(Unavailable):
        store.put(A, never, expect=1)
    with pytest.raises(Unavailable):
        store.delete(A, never, expect=1)
    with pytest.raises(Unavailable):
        store.watch("", since=0)


def test_a_watcher_may_by_default_leave_a_whole_burst_of_writes_unread() -> None:
    """Otherwise one commit could cut off a watcher that never had a chance to read."""
    assert DEFAULT_LIMITS.pending_count_max <= WATCH_BUFFER_MAX
