"""A process to be killed: eight writers and a watcher on one store, reporting as they go.

    python store_child.py DATABASE SINCE SEED

Prints ``ready``, then ``ack REVISION KEY VERB CHECKSUM`` for each acknowledged
write and ``saw …`` for each change the watcher got, one line and one system call
each, until somebody ends it.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from store_values import checksum, sealed

from bullpen.store import sqlite
from bullpen.store.base import ABSENT, Store
from bullpen.store.history import Limits
from bullpen.store.sqlite import SqliteStore

WRITERS = 8
KEYS_PER_WRITER = 6
LIMITS = Limits(history_count_max=4000)


def report(what: str, revision: int, key: str, verb: str, value: bytes) -> None:
    line = f"{what} {revision} {key} {verb} {checksum(key, revision, value)}\n"
    os.write(1, line.encode())


async def write(store: Store, number: int, rng: random.Random) -> None:
    """Create, update and delete a few keys, for ever."""
    while True:
        key = f"lab/crash/{number}/{rng.randrange(KEYS_PER_WRITER)}"
        head = store.head(key)
        encode = sealed(key, rng.randbytes(rng.choice((0, 10, 300, 2200, 9000))))
        if head is None:
            entry = await store.put(key, encode, expect=ABSENT)
            report("ack", entry.revision, key, "ADDED", entry.value)
        elif rng.random() < 0.2:
            entry = await store.delete(key, encode, expect=head.revision)
            report("ack", entry.revision, key, "DELETED", entry.value)
        else:
            entry = await store.put(key, encode, expect=head.revision)
            report("ack", entry.revision, key, "MODIFIED", entry.value)


async def watch(store: Store, since: int) -> None:
    changes = store.watch("", since=since)
    while True:
        for change in await changes.next():
            report("saw", change.revision, change.key, change.verb.value, change.value)


async def main(path: Path, since: int, seed: int) -> None:
    # Often, so that many kills hit one.
    sqlite.CHECKPOINT_PAGES = 40
    store = await SqliteStore.open(path, limits=LIMITS)
    os.write(1, b"ready\n")
    async with asyncio.TaskGroup() as group:
        group.create_task(watch(store, since))
        for number in range(WRITERS):
            group.create_task(write(store, number, random.Random(seed * WRITERS + number)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
