"""Words the store tests share."""

from __future__ import annotations

import asyncio
from typing import Protocol

import pytest

from bullpen.errors import Unavailable
from bullpen.store.base import ABSENT, Change, Encode, Entry, Store, Watch
from bullpen.store.history import DEFAULT_LIMITS, Limits

A = "lab/exporters/default/a"
B = "lab/exporters/default/b"
C = "lab/exporters/other/c"
LEASE = "lab/leases/default/a"
PREFIX = "lab/exporters/"


class OpenStore(Protocol):
    async def __call__(self, limits: Limits = DEFAULT_LIMITS) -> Store: ...


def text(content: str) -> Encode:
    """Bytes that carry their own revision, as a Kubernetes object does."""
    return lambda revision: f"{content}@{revision}".encode()


def never(revision: int) -> bytes:
    pytest.fail(f"encode was called for revision {revision}")


async def create(store: Store, *keys: str) -> list[Entry]:
    return await asyncio.gather(*(store.put(key, text("new"), expect=ABSENT) for key in keys))


async def overwrite(store: Store, key: str, times: int) -> None:
    """Update a key so many times, creating it first if it is not there."""
    entry = store.head(key) or await store.put(key, text("0"), expect=ABSENT)
    for number in range(1, times + 1):
        entry = await store.put(key, text(str(number)), expect=entry.revision)


async def read(watch: Watch, count: int) -> list[Change]:
    """At least so many changes."""
    changes: list[Change] = []
    while len(changes) < count:
        changes += await watch.next()
    return changes


async def ended(watch: Watch) -> bool:
    """Whether the watch is closed and read to its end."""
    try:
        await watch.next()
    except Unavailable:
        return True
    return False


def held(store: Store, prefix: str = "", *, at: int | None = None) -> dict[str, bytes]:
    return {entry.key: entry.value for entry in store.scan(prefix, at=at).entries}
