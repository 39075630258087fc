"""Runs many operations together, so that their writes share commits, and collects errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from bullpen.errors import LabError

AT_ONCE_MAX = 64


async def together(acts: Iterable[Awaitable[None]]) -> list[LabError | None]:
    """Run all operations; returns the error of each, or None. A failure stops no other."""
    wanted = tuple(acts)
    if not wanted:
        return []
    if len(wanted) == 1:
        return [await _error(wanted[0])]
    slots = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(act: Awaitable[None]) -> LabError | None:
        async with slots:
            return await _error(act)

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one(act)) for act in wanted]
    return [task.result() for task in running]


async def _error(act: Awaitable[None]) -> LabError | None:
    try:
        await act
    except LabError as error:
        return error
    return None
