"""Changing one object that others change too: read, edit, compare, again if it moved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from bullpen.api.fields import Kind
from bullpen.api.objects import Objects
from bullpen.errors import Conflict
from bullpen.runtime.informer import Informer, key_of

K = TypeVar("K", bound=Kind)

ATTEMPTS_MAX = 10
PAUSE_SECONDS = 0.001
"""Before the second attempt, doubling. Until the write we lost to is on disk, reading
again shows the state before it, and trying again would lose again."""


async def change(objects: Objects, view: Informer[K], value: K, edit: Callable[[K], K]) -> K:
    """Make of the object what ``edit`` makes of its newest state, its status left alone.

    Raises ``NotFound`` if the object is gone, ``Conflict`` if it moved every time, and
    whatever ``edit`` raises.
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
    for attempt in range(ATTEMPTS_MAX):
        edited = edit(value)
        if edited == value:
            return value
        try:
            written = await write(edited)
        except Conflict:
            await asyncio.sleep(PAUSE_SECONDS * 2**attempt)
            value = await objects.get(type(value), *key_of(value))
        else:
            view.observe(written)
            return written
    name = key_of(value)[1]
    raise Conflict(f"{name} changed {ATTEMPTS_MAX} times while it was being written; try again")
