"""Watch streams: newline-delimited events from the registry to one caller.

The line of an event is encoded once and shared by every watcher that wants the whole
object. Bookmarks tell an idle watcher the current revision, so that its next resume does
not find the history compacted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import lru_cache

from bullpen.api.paths import Document, encode
from bullpen.apiserver.representations import Representation, Shape
from bullpen.apiserver.status import failure
from bullpen.errors import LabError
from bullpen.registry.watches import ObjectEvent, ObjectWatch

BOOKMARK_SECONDS = 60.0
LINES_CACHED_MAX = 64
"""Encoded lines kept for the next watcher: all watchers of a change need it together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    timeout_seconds: float
    bookmarks: bool = False
    initial_events: bool = False
    """Mark the end of the initial state with an annotated bookmark (WatchList)."""


async def stream(
    watch: ObjectWatch, representation: Representation, options: WatchOptions
) -> AsyncIterator[bytes]:
    """Lines until the timeout, the end of the client, or the end of the watch."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + options.timeout_seconds
    if options.initial_events:
        initial = watch.initial()
        if initial:
            yield _lines(initial, representation)
        yield _bookmark(representation, watch.position, initial_end=True)

    # One timer for many events: a timeout around each took a seventh of the whole fan-out.
    def set_alarm() -> asyncio.TimerHandle:
        return loop.call_at(min(deadline, loop.time() + BOOKMARK_SECONDS), watch.nudge)

    alarm = set_alarm()
    try:
        while loop.time() < deadline:
            try:
                events = await watch.next()
            except LabError as error:
                yield _line("ERROR", encode(failure(error)))
                return
            if events:
                yield _lines(events, representation)
                continue
            alarm = set_alarm()
            if options.bookmarks:
                yield _bookmark(representation, watch.position)
    finally:
        alarm.cancel()


def _lines(events: tuple[ObjectEvent, ...], representation: Representation) -> bytes:
    if representation.shape is Shape.WHOLE:
        return b"".join([_line(event.type, event.value) for event in events])
    return b"".join([_line(e.type, representation.one(e.value)) for e in events])


@lru_cache(maxsize=LINES_CACHED_MAX)
def _line(kind: str, value: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), value)


def _bookmark(representation: Representation, revision: int, *, initial_end: bool = False) -> bytes:
    resource = representation.resource
    meta: Document = {"resourceVersion": str(revision), "creationTimestamp": None}
    if initial_end:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    document: Document = {
        "kind": resource.kind,
        "apiVersion": resource.api_version,
        "metadata": meta,
    }
    value = encode(document)
    if representation.shape is not Shape.WHOLE:
        value = representation.one(value)
    return b'{"type":"BOOKMARK","object":%b}\n' % value
