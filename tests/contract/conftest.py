"""Every store the contract holds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bullpen.store.base import Store
from bullpen.store.history import DEFAULT_LIMITS, Limits
from bullpen.store.journaled import MemoryStore
from bullpen.store.sqlite import SqliteStore
from support.store_helpers import OpenStore


@pytest.fixture(params=["memory", "sqlite"])
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    opened: list[Store] = []

    async def open_one(limits: Limits = DEFAULT_LIMITS) -> Store:
        if request.param == "memory":
            opened.append(MemoryStore(limits=limits))
        else:
            path = tmp_path / f"{len(opened)}.db"
            opened.append(await SqliteStore.open(path, limits=limits))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: OpenStore) -> Store:
    return await open_store()
