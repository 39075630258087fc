"""Values that are kept compressed: the same bytes come back, or the file is refused."""

from __future__ import annotations

import contextlib
import random
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.errors import Damaged
from bullpen.store.base import ABSENT, Entry
from bullpen.store.packing import DICTIONARY, Packed, entry_of, kept, unpacked
from bullpen.store.sqlite import SqliteStore


def is_cold(key: str, value: bytes) -> bool:
    return key.startswith("cold/")


async def written(path: Path, *keys: str) -> None:
    store = await SqliteStore.open(path, cold=is_cold)
    for key in keys:
        value = DICTIONARY + key.encode()
        await store.put(key, partial(_always, value), expect=ABSENT)
    await store.close()


def _always(value: bytes, revision: int) -> bytes:
    return value


def sql(path: Path, text: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        return list(connection.execute(text))


@given(st.binary(max_size=5_000))
def test_every_value_comes_back_as_it_was(value: bytes) -> None:
    entry = Entry("cold/a", value, 7)
    packed = kept(entry, is_cold)
    assert isinstance(packed, Packed)
    assert entry_of(packed) == entry
    assert kept(Entry("warm/a", value, 7), is_cold) == Entry("warm/a", value, 7)


async def test_only_cold_values_are_compressed_and_both_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await written(path, "cold/a", "warm/a")
    sizes = dict(sql(path, "SELECT key, length(value) FROM log"))
    assert sizes["warm/a"] == len(DICTIONARY) + len("warm/a")
    assert sizes["cold/a"] < 100
    store = await SqliteStore.open(path, cold=is_cold)
    try:
        values = {entry.key: entry.value for entry in store.scan("").entries}
        assert values == {key: DICTIONARY + key.encode() for key in ("cold/a", "warm/a")}
        assert isinstance(store._ledger._entries["cold/a"], Packed)
    finally:
        await store.close()


async def test_cold_values_of_an_older_file_are_compressed_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await SqliteStore.open(path)
    await store.put("cold/a", lambda _: DICTIONARY, expect=ABSENT)
    await store.close()
    store = await SqliteStore.open(path, cold=is_cold)
    try:
        assert isinstance(store._ledger._entries["cold/a"], Packed)
        found = store.get("cold/a")
        assert found is not None
        assert found.value == DICTIONARY
    finally:
        await store.close()


@pytest.mark.parametrize("seed", range(20))
async def test_a_damaged_cold_value_is_refused_like_any_other(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "store.db"
    await written(path, "cold/a")
    ((data,),) = sql(path, "SELECT value FROM log")
    assert isinstance(data, bytes)
    chance = random.Random(seed)
    place = chance.randrange(len(data))
    spoilt = bytearray(data)
    spoilt[place] ^= 1 << chance.randrange(8)
    if chance.random() < 0.2:
        spoilt = spoilt[:place]
    with pytest.raises(ValueError, match=r"compress|incomplete|distance|check|invalid"):
        unpacked(bytes(spoilt))
    sql(path, f"UPDATE log SET value = x'{bytes(spoilt).hex()}'")
    with pytest.raises(Damaged):
        await SqliteStore.open(path, cold=is_cold)
