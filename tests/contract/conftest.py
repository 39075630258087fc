"""Every store the contract holds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bullpen.store.base import Store
from bullpen.store.history import DEFAULT_LIMITS, Limits
from bullpen.store.journaled import MemoryStore
from bullpen.store.packing import nothing_is_cold
from bullpen.store.sqlite import SqliteStore
from support.store_helpers import OpenStore


def everything_is_cold(key: str, value: bytes) -> bool:
    return True


@pytest.fixture(params=["memory", "sqlite", "packed"])
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    opened: list[Store] = []

    async def open_one(limits: Limits = DEFAULT_LIMITS) -> Store:
        if request.param == "memory":
            opened.append(MemoryStore(limits=limits))
        else:
            path = tmp_path / f"{len(opened)}.db"
            cold = nothing_is_cold if request.param == "sqlite" else everything_is_cold
            opened.append(await SqliteStore.open(path, limits=limits, cold=cold))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: OpenStore) -> Store:
    return await open_store()
