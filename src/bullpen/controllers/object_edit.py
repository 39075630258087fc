"""Writes of controllers: edits of objects that others change too, and many writes at once.

An edit reads, changes, compares and is retried on conflict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from bullpen.api.fields import Kind
from bullpen.api.objects import Objects, meta_of
from bullpen.errors import Conflict, LabError, Unavailable
from bullpen.runtime.informer import Informer, key_of

K = TypeVar("K", bound=Kind)

ATTEMPTS_MAX = 10
"""Conflicting writes of one object before giving up."""

PAUSE_SECONDS = 0.001
PAUSE_SECONDS_MAX = 0.1
"""Pause before the next attempt, doubling each time.

Until the conflicting write is durable, a read still shows the state before it, and another
attempt would conflict again.
"""

SLOW_SECONDS_MAX = 10.0
"""How long to wait for the conflicting write to become durable."""

AT_ONCE_MAX = 64
"""Operations of ``together`` that run at the same time; the largest batch."""

BATCH_FIRST = 8
"""The first batch of ``in_batches``; each of the following is twice as large as the last."""


async def change(objects: Objects, view: Informer[K], value: K, edit: Callable[[K], K]) -> K:
    """Apply ``edit`` to the newest state of the object; its status is left alone.

    Raises ``NotFound`` if the object is gone, ``Unavailable`` if every attempt conflicted or an
    earlier write did not become durable, and whatever ``edit`` raises.
    """
    return await _change(objects, view, value, edit, objects.update)


async def change_status(
    objects: Objects, view: Informer[K], value: K, edit: Callable[[K], object]
) -> K:
    """Set the status to what ``edit`` returns for the newest object, as ``change`` does."""

    def edited(newest: K) -> K:
        return replace(newest, status=edit(newest))  # type: ignore[call-arg]

    return await _change(objects, view, value, edited, objects.update_status)


async def _change(
    objects: Objects,
    view: Informer[K],
    value: K,
    edit: Callable[[K], K],
    write: Callable[[K], Awaitable[K]],
) -> K:
    moves, pause, waited = 0, PAUSE_SECONDS, 0.0
    while moves < ATTEMPTS_MAX and waited < SLOW_SECONDS_MAX:
        edited = edit(value)
        if edited == value:
            return value
        try:
            written = await write(edited)
        except Conflict:
            await asyncio.sleep(pause)
            waited += pause
            newest = await objects.get(type(value), *key_of(value))
            moved = meta_of(newest).resource_version != meta_of(value).resource_version
            moves += moved
            pause = PAUSE_SECONDS if moved else min(2 * pause, PAUSE_SECONDS_MAX)
            value = newest
        else:
            view.observe(written)
            return written
    name = key_of(value)[1]
    if moves < ATTEMPTS_MAX:
        text = f"{name} is being written and that takes more than {SLOW_SECONDS_MAX:.0f} s"
        raise Unavailable(f"{text}; try again")
    raise Unavailable(f"{name} changed {moves} times while it was being written; try again")


async def together(acts: Iterable[Awaitable[None]]) -> list[LabError | None]:
    """Run many operations at once, so that their writes share commits.

    Returns the error of each, or None. A failure stops no other.
    """
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


async def in_batches(
    acts: Sequence[Callable[[], Awaitable[None]]], *, stops: Callable[[LabError], bool]
) -> list[LabError | None]:
    """Run operations of one kind in growing batches, as most fail if the first ones do.

    After a batch with an error that ``stops`` the rest, no other begins. Returns the error of
    each operation that was tried, or None.
    """
    results: list[LabError | None] = []
    size = BATCH_FIRST
    while len(results) < len(acts):
        batch = await together(act() for act in acts[len(results) : len(results) + size])
        results += batch
        if any(error is not None and stops(error) for error in batch):
            break
        size = min(2 * size, AT_ONCE_MAX)
    return results


async def _error(act: Awaitable[None]) -> LabError | None:
    try:
        await act
    except LabError as error:
        return error
    return None
