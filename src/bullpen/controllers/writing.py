"""Changing one object that others change too: read, edit, compare, again if it moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from bullpen.api.fields import Kind
from bullpen.api.objects import Objects
from bullpen.errors import Conflict
from bullpen.runtime.informer import Informer, key_of

K = TypeVar("K", bound=Kind)

ATTEMPTS_MAX = 8


async def change_status(
    objects: Objects, view: Informer[K], value: K, edit: Callable[[K], object]
) -> K:
    """Set the status to what ``edit`` makes of the newest object, unless it is that already.

    Raises ``NotFound`` if the object is gone, ``Conflict`` if it moved every time.
    """
    for _ in range(ATTEMPTS_MAX):
        status = edit(value)
        if status == value.status:  # type: ignore[attr-defined]
            return value
        try:
            changed = await objects.update_status(replace(value, status=status))  # type: ignore[call-arg]
        except Conflict:
            value = await objects.get(type(value), *key_of(value))
        else:
            view.observe(changed)
            return changed
    raise Conflict(f"{key_of(value)[1]} changed {ATTEMPTS_MAX} times while it was being written")
