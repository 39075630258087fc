"""A power cut loses nothing that was acknowledged: what only the page cache knew does not count."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from power import PowerDisk
from store_values import checksum, sealed

from bullpen.store import sqlite
from bullpen.store.base import ABSENT, Page, Store
from bullpen.store.history import Limits
from bullpen.store.sqlite import SqliteStore

CUTS = 150
SEED = 7
LIMITS = Limits(history_count_max=300)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_power_cut_at_any_moment_keeps_every_acknowledged_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "CHECKPOINT_PAGES", 20)
    rng = random.Random(SEED)
    disk = PowerDisk("power")
    store = await SqliteStore.open(tmp_path / "store.db", limits=LIMITS, vfs=disk.name)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(_write(store, number, stop))
        for number in range(CUTS):
            await asyncio.sleep(rng.uniform(0, 0.02))
            directory = tmp_path / str(number)
            directory.mkdir()
            known = store.scan("")
            disk.cut(directory, rng)
            await _check(directory / "store.db", known)
        stop.set()
    await store.close()
    disk.unregister()
    assert store.oldest > 0, "history was never cleared out"


async def _write(store: Store, number: int, stop: asyncio.Event) -> None:
    rng = random.Random(number)
    while not stop.is_set():
        key = f"lab/power/{number}/{rng.randrange(5)}"
        head = store.head(key)
        encode = sealed(key, rng.randbytes(rng.choice((0, 500, 9000))))
        if head is not None and rng.random() < 0.2:
            await store.delete(key, encode, expect=head.revision)
        else:
            await store.put(key, encode, expect=head.revision if head else ABSENT)


async def _check(path: Path, known: Page) -> None:
    """Everything anybody could have read is there, and all that is there is whole."""
    store = await SqliteStore.open(path, limits=LIMITS)
    try:
        assert store.revision >= known.revision
        for entry in store.scan("").entries:
            checksum(entry.key, entry.revision, entry.value)
        assert store.scan("", at=known.revision) == known
    finally:
        await store.close()
