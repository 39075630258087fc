"""What every store promises about reading, now and as it was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from bullpen.errors import (
    Gone,
    Unavailable,
)
from bullpen.store.base import ABSENT, Entry, Store
from bullpen.store.history import Limits
from support.store_helpers import (
    LEASE,
    PREFIX,
    A,
    B,
    C,
    OpenStore,
    create,
    held,
    overwrite,
    read,
    text,
)

SCANNED = (A, B, C, LEASE, "lab/exporterset/default/a", "lab", "lab/exporters", "other")


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        pytest.param("", sorted(SCANNED), id="the empty prefix covers everything in order"),
        pytest.param(PREFIX, [A, B, C], id="a kind"),
        pytest.param("lab/exporters/default/", [A, B], id="a namespace"),
        pytest.param(A, [A], id="one key"),
        pytest.param("lab/exporters/d", [A, B], id="a prefix that ends within a name"),
        pytest.param(
            "lab/exporter",
            sorted({*SCANNED} - {"lab", "other", LEASE}),
            id="a prefix of several kinds",
        ),
        pytest.param("lab/", sorted({*SCANNED} - {"lab", "other"}), id="a group"),
        pytest.param("lab/exporters/none/", [], id="a namespace without objects"),
        pytest.param("lab/none/", [], id="a kind without objects"),
        pytest.param("zzz", [], id="a prefix behind every key"),
    ],
)
async def test_a_scan_finds_exactly_what_is_under_its_prefix(
    store: Store, prefix: str, expected: list[str]
) -> None:
    await create(store, *SCANNED)
    assert [entry.key for entry in store.scan(prefix).entries] == expected
    collected: list[str] = []
    while (page := store.scan(prefix, after="".join(collected[-1:]), limit=2)).entries:
        collected += [entry.key for entry in page.entries]
        assert page.remaining == len(expected) - len(collected)
    assert collected == expected


async def test_a_page_begins_behind_after_also_when_that_key_is_gone(store: Store) -> None:
    await create(store, A, B, C)
    await store.delete(B, text("last"), expect=2)
    page = store.scan(PREFIX, after=B)
    assert [entry.key for entry in page.entries] == [C]
    assert (page.revision, page.remaining) == (4, 0)


async def test_pages_at_one_revision_are_one_snapshot_whatever_happens_meanwhile(
    store: Store,
) -> None:
    keys = [f"{PREFIX}default/{number}" for number in range(9)]
    await create(store, *keys, LEASE)
    snapshot = store.scan(PREFIX)
    pages = [store.scan(PREFIX, limit=2, at=snapshot.revision)]
    disturbances: list[Callable[[], Awaitable[Entry]]] = [
        lambda: store.put(f"{PREFIX}default/35", text("created between"), expect=ABSENT),
        lambda: store.delete(keys[8], text("deleted"), expect=9),
        lambda: store.put(keys[7], text("updated"), expect=8),
        lambda: store.delete(keys[6], text("deleted"), expect=7),
        lambda: store.put(keys[6], text("recreated"), expect=ABSENT),
        lambda: store.put(f"{PREFIX}default/99", text("created behind"), expect=ABSENT),
    ]
    while pages[-1].remaining:
        while disturbances:
            await disturbances.pop(0)()
        last = pages[-1].entries[-1].key
        pages.append(store.scan(PREFIX, after=last, limit=2, at=snapshot.revision))
    assert [page.remaining for page in pages] == [7, 5, 3, 1, 0]
    assert {page.revision for page in pages} == {snapshot.revision}
    assert tuple(entry for page in pages for entry in page.entries) == snapshot.entries


async def test_every_retained_revision_can_be_read(store: Store) -> None:
    states = [held(store)]
    for round_ in range(3):
        for key in (A, B, C):
            head = store.head(key)
            write = (
                store.put(key, text("on"), expect=ABSENT)
                if head is None
                else store.delete(key, text("off"), expect=head.revision)
            )
            await write
            states.append(held(store))
        await create(store, f"{LEASE}{round_}")
        states.append(held(store))
    assert [held(store, at=at) for at in range(len(states))] == states


async def test_a_snapshot_knows_the_revision_each_value_had(store: Store) -> None:
    await create(store, A)
    await overwrite(store, A, 2)
    entries = [store.scan("", at=at).entries[0] for at in (1, 2, 3)]
    assert entries == [Entry(A, b"new@1", 1), Entry(A, b"1@2", 2), Entry(A, b"2@3", 3)]


# Compaction


async def test_history_is_bounded_by_count(open_store: OpenStore) -> None:
    store = await open_store(Limits(history_count_max=3))
    await overwrite(store, A, 9)
    assert (store.oldest, store.revision) == (7, 10)
    assert held(store, at=7) == {A: b"6@7"}
    assert [change.revision for change in await store.watch("", since=7).next()] == [8, 9, 10]


async def test_history_is_bounded_by_bytes(open_store: OpenStore) -> None:
    store = await open_store(Limits(history_bytes_max=250))
    for number in range(6):
        await store.put(A, lambda _: bytes(100), expect=number)
    assert (store.oldest, store.revision) == (4, 6)
    await store.delete(A, lambda _: bytes(100), expect=6)
    assert (store.oldest, store.revision) == (6, 7)


@pytest.mark.parametrize("revision", [0, 6])
async def test_what_was_compacted_is_gone(open_store: OpenStore, revision: int) -> None:
    store = await open_store(Limits(history_count_max=3))
    await overwrite(store, A, 9)
    with pytest.raises(Gone):
        store.watch("", since=revision)
    with pytest.raises(Gone):
        store.scan("", at=revision)


async def test_a_store_can_do_without_history(open_store: OpenStore) -> None:
    store = await open_store(Limits(history_count_max=0))
    watch = store.watch("", since=0)
    await overwrite(store, A, 2)
    assert store.oldest == store.revision == 3
    assert [change.revision for change in await read(watch, 3)] == [1, 2, 3]
    assert held(store, at=3) == {A: b"2@3"}


async def test_the_future_is_unavailable(store: Store) -> None:
    await create(store, A)
    with pytest.raises(Unavailable):
        store.watch("", since=2)
    with pytest.raises(Unavailable):
        store.scan("", at=2)
