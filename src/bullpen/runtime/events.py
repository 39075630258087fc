"""Kubernetes Events: what happened to an object, for people who ask why.

Recording an event must never delay the work: events wait in a bounded buffer and the oldest
are dropped when it is full. A repeated event is counted, not written again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from bullpen.api.fields import Kind
from bullpen.api.kinds.core import Event, ObjectReference
from bullpen.api.meta import ObjectMeta
from bullpen.api.objects import Objects, meta_of
from bullpen.errors import Conflict, LabError, NotFound
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids

log = logging.getLogger("bullpen.runtime")

BUFFER_MAX = 5_000
AT_ONCE_MAX = 64
LINGER_SECONDS = 0.05
REMEMBERED_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Happening:
    about: ObjectReference
    reason: str
    message: str
    type: str
    at: datetime

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal for events that are counted together."""
        return self.about.uid, self.reason, self.message


class Events:
    def __init__(self, objects: Objects, *, clock: Clock, ids: Ids, component: str) -> None:
        self._objects = objects
        self._clock = clock
        self._ids = ids
        self._component = component
        self._buffer: deque[_Happening] = deque(maxlen=BUFFER_MAX)
        self._news = asyncio.Event()
        self._known: OrderedDict[tuple[str, str, str], Event] = OrderedDict()

    def emit(self, value: Kind, *, reason: str, message: str, warning: bool = False) -> None:
        """Record that something happened to an object. Returns at once."""
        meta = meta_of(value)
        about = ObjectReference(
            kind=value.kind,
            api_version=value.api_version,
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            resource_version=meta.resource_version,
        )
        kind = "Warning" if warning else "Normal"
        now = self._clock.now()
        self._buffer.append(
            _Happening(about=about, reason=reason, message=message, type=kind, at=now)
        )
        self._news.set()

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            await self._news.wait()
            # Events may wait, unlike the work itself, and many are written in one commit.
            await asyncio.sleep(LINGER_SECONDS)
            self._news.clear()
            await self.flush()

    async def flush(self) -> None:
        """Write the events that were emitted before; ``run`` calls this in the end."""
        while self._buffer:
            async with asyncio.TaskGroup() as tasks:
                for alike in self._taken():
                    tasks.create_task(self._write_alike(alike))

    def _taken(self) -> Iterable[list[_Happening]]:
        """The next events to write; those that differ only in time are grouped."""
        found: dict[tuple[str, str, str], list[_Happening]] = {}
        for _ in range(min(AT_ONCE_MAX, len(self._buffer))):
            happening = self._buffer.popleft()
            found.setdefault(happening.key, []).append(happening)
        return found.values()

    async def _write_alike(self, alike: list[_Happening]) -> None:
        for happening in alike:
            try:
                await self._write(happening)
            except LabError as error:
                facts = {"key": happening.about.name, "cause": str(error)}
                log.warning("event not written", extra=facts)
            except Exception:
                log.exception("event not written", extra={"key": happening.about.name})

    async def _write(self, happening: _Happening) -> None:
        key = happening.key
        known = self._known.pop(key, None)
        written = None
        if known is not None:
            again = replace(known, count=known.count + 1, last_timestamp=happening.at)
            try:
                written = await self._objects.update(again)
            except (Conflict, NotFound):
                written = None
        self._known[key] = written or await self._objects.create(self._event(happening))
        if len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)

    def _event(self, happening: _Happening) -> Event:
        about = happening.about
        return Event(
            metadata=ObjectMeta(
                name=f"{about.name}.{self._ids.uid().replace('-', '')[:16]}",
                namespace=about.namespace or "default",
            ),
            involved_object=about,
            reason=happening.reason,
            message=happening.message,
            type=happening.type,
            count=1,
            first_timestamp=happening.at,
            last_timestamp=happening.at,
            reporting_component=self._component,
        )
