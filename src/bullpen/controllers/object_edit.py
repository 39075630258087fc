"""Changing one object that others change too: read, edit, compare, again if it moved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from bullpen.api.fields import Kind
from bullpen.api.objects import Objects, meta_of
from bullpen.errors import Conflict, Unavailable
from bullpen.runtime.informer import Informer, key_of

K = TypeVar("K", bound=Kind)

ATTEMPTS_MAX = 10
"""How often an object may move on while it is being written."""

PAUSE_SECONDS = 0.001
PAUSE_SECONDS_MAX = 0.1
"""Before the next attempt, doubling. Until the write we lost to is on disk, reading
again shows the state before it, and trying again would lose again."""

SLOW_SECONDS_MAX = 10.0
"""How long we wait for a disk to take that write."""


async def change(objects: Objects, view: Informer[K], value: K, edit: Callable[[K], K]) -> K:
    """Make of the object what ``edit`` makes of its newest state, its status left alone.

    Raises ``NotFound`` if the object is gone, ``Unavailable`` if it moved every time or
    what stands before it is not written, and whatever ``edit`` raises.
    """
    return await _change(objects, view, value, edit, objects.update)


async def change_status(
    objects: Objects, view: Informer[K], value: K, edit: Callable[[K], object]
) -> K:
    """Set the status to what ``edit`` makes of the newest object, as ``change`` does."""

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
