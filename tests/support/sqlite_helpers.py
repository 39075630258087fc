"""Words the tests of the SQLite store share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import apsw

from bullpen.store.base import ABSENT, Entry, Store
from bullpen.store.history import DEFAULT_LIMITS, Limits
from bullpen.store.sqlite import SqliteStore

KEY = "lab/exporters/default/a"


@contextlib.asynccontextmanager
async def opened(
    path: Path, limits: Limits = DEFAULT_LIMITS, vfs: str | None = None
) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path, limits=limits, vfs=vfs)
    try:
        yield store
    finally:
        await store.close()


async def fill(store: Store, count: int, *, size: int = 100, prefix: str = "lab/x/y/") -> None:
    """Create so many keys at once."""
    keys = [f"{prefix}{number:06}" for number in range(count)]
    await asyncio.gather(*(store.put(key, lambda _: bytes(size), expect=ABSENT) for key in keys))


async def overwrite(store: Store, times: int, *, key: str = KEY, size: int = 10) -> None:
    """Write one key so many times, one after the other."""
    for _ in range(times):
        head = store.head(key)
        await store.put(key, lambda _: bytes(size), expect=head.revision if head else ABSENT)


def state(store: Store) -> tuple[Entry, ...]:
    return store.scan("").entries


def query(path: Path, sql: str) -> list[tuple[apsw.SQLiteValue, ...]]:
    """What a closed database answers."""
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        return list(connection.execute(sql))
