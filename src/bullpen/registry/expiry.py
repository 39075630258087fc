"""Expires Events: deletes old ones, and the oldest if there are too many.

In a cluster the API server does this. Which Events to delete is a pure decision over when
each was last counted. Only the times of an Event are decoded, and the loop yields to other
tasks in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

import msgspec

from bullpen.errors import Conflict, LabError, NotFound
from bullpen.kit import times
from bullpen.kit.clock import Clock
from bullpen.registry.options import DeleteOptions
from bullpen.registry.registry import Registry
from bullpen.store.base import Entry

log = logging.getLogger("bullpen.registry.expiry")

LIFETIME = timedelta(hours=1)
KEPT_MAX = 10_000
"""Events that a sweep keeps; all Events are read at each start."""

EVERY_SECONDS = 60.0
READ_AT_ONCE_MAX = 500
DELETED_AT_ONCE_MAX = 64


class _Metadata(msgspec.Struct, rename="camel"):
    creation_timestamp: str


class _Times(msgspec.Struct, rename="camel"):
    metadata: _Metadata
    last_timestamp: str | None = None


_read = msgspec.json.Decoder(_Times).decode


@dataclass(frozen=True, slots=True, order=True)
class Stored:
    """An event and when it was last counted."""

    when: datetime
    revision: int
    key: str


def surplus(events: Iterable[Stored], *, now: datetime) -> tuple[Stored, ...]:
    """The Events to delete, oldest first."""
    found = sorted(events)
    excess = len(found) - KEPT_MAX
    limit = now - LIFETIME
    return tuple(one for place, one in enumerate(found) if place < excess or one.when < limit)


class EventSweeper:
    def __init__(self, registry: Registry, *, clock: Clock) -> None:
        found = registry.resources.of_kind("v1", "Event")
        assert found is not None
        self._resource = found
        self._registry = registry
        self._clock = clock

    async def run(self) -> None:
        """Sweep periodically, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            try:
                await self.sweep()
            except* LabError as errors:
                cause = str(errors.exceptions[0])
                log.warning("old events could not be deleted", extra={"key": "", "cause": cause})

    async def sweep(self) -> None:
        """Delete expired Events. Raises ``LabError`` in a group when a write fails."""
        old = iter(surplus(await self._stored(), now=self._clock.now()))
        while some := tuple(islice(old, DELETED_AT_ONCE_MAX)):
            async with asyncio.TaskGroup() as tasks:
                for one in some:
                    tasks.create_task(self._delete(one))

    async def _stored(self) -> list[Stored]:
        found: list[Stored] = []
        after = ""
        while True:
            page = self._registry.store.scan(
                self._resource.prefix, after=after, limit=READ_AT_ONCE_MAX
            )
            found += (one for entry in page.entries if (one := _stored(entry)) is not None)
            if not page.remaining:
                return found
            after = page.entries[-1].key
            await asyncio.sleep(0)

    async def _delete(self, one: Stored) -> None:
        namespace, _, name = one.key.removeprefix(self._resource.prefix).partition("/")
        options = DeleteOptions(resource_version=str(one.revision))
        # An Event that was counted again meanwhile is no longer old.
        with contextlib.suppress(Conflict, NotFound):
            await self._registry.delete(self._resource, namespace, name, options)


def _stored(entry: Entry) -> Stored | None:
    """None for an Event whose times cannot be read; it is left alone."""
    try:
        found = _read(entry.value)
        when = times.parse(found.last_timestamp or found.metadata.creation_timestamp)
    except (msgspec.DecodeError, ValueError) as error:
        log.warning("event cannot be read", extra={"key": entry.key, "cause": str(error)})
        return None
    return Stored(when, entry.revision, entry.key)
