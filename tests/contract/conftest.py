"""Every store the contract holds, and what no test may leave in the log."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bullpen.store.base import Store
from bullpen.store.history import DEFAULT_LIMITS, Limits
from bullpen.store.journaled import MemoryStore
from bullpen.store.packing import nothing_is_cold
from bullpen.store.sqlite import SqliteStore
from support.store_helpers import OpenStore


class _Errors(logging.Handler):
    """Keeps what is logged with a traceback: unexpected errors, which others do not see."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(logging.Formatter("%(name)s: %(message)s").format(record))


@pytest.fixture(autouse=True)
def unexpected_errors() -> Iterator[list[str]]:
    """No pass, listener or call ends with an error that nothing expects.

    The process survives such an error, so a test could pass although there was one. Tests about
    such errors take this fixture and clear it.
    """
    errors, logger = _Errors(), logging.getLogger("bullpen")
    logger.addHandler(errors)
    yield errors.found
    logger.removeHandler(errors)
    assert not errors.found, "\n".join(errors.found)


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
