"""Turns connections into the Online condition.

At once when one comes, after a grace when none is left.
"""

from __future__ import annotations

from datetime import datetime

from bullpen.api.exporter import Exporter
from bullpen.api.objects import Objects
from bullpen.controllers.views import Views
from bullpen.controllers.writing import change_status
from bullpen.core import presence
from bullpen.errors import NotFound
from bullpen.kit.clock import Clock
from bullpen.runtime.events import Events
from bullpen.runtime.informer import Key
from bullpen.runtime.loop import Outcome


class Connections:
    """Which exporters are connected now, and since when the others are not."""

    def __init__(self, *, started: datetime) -> None:
        self._started = started
        self._open: dict[Key, int] = {}
        self._lost: dict[Key, datetime] = {}

    def opened(self, key: Key) -> None:
        self._open[key] = self._open.get(key, 0) + 1
        self._lost.pop(key, None)

    def closed(self, key: Key, *, now: datetime) -> None:
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]
            self._lost[key] = now

    def heard(self, key: Key, *, now: datetime) -> None:
        """The exporter called without being connected: about to be, or just was."""
        if key not in self._open:
            self._lost[key] = now

    def connected(self, key: Key) -> bool:
        return key in self._open

    def lost_since(self, key: Key) -> datetime:
        """Whoever has not come since we started counts from then."""
        return self._lost.get(key, self._started)


class PresenceReconciler:
    """Reconciles one exporter's Online condition."""

    name = "presence"

    def __init__(
        self,
        objects: Objects,
        views: Views,
        connections: Connections,
        *,
        clock: Clock,
        events: Events,
    ) -> None:
        self._objects = objects
        self._views = views
        self._connections = connections
        self._clock = clock
        self._events = events

    async def reconcile(self, key: Key) -> Outcome:
        exporter = self._views.exporters.get(*key)
        if exporter is None or self._connections.connected(key) == presence.online(exporter):
            return Outcome()
        now = self._clock.now()
        if self._connections.connected(key):
            await self._write(exporter, "ExporterOnline", "connected")
            return Outcome()
        due = self._connections.lost_since(key) + presence.GRACE
        if due > now:
            return Outcome(wake_at=due)
        await self._write(exporter, "ExporterOffline", "the connection was lost")
        return Outcome()

    async def _write(self, exporter: Exporter, reason: str, message: str) -> None:
        now = self._clock.now()
        edit = presence.seen if reason == "ExporterOnline" else presence.lost
        try:
            written = await change_status(
                self._objects, self._views.exporters, exporter, lambda e: edit(e, now=now)
            )
        except NotFound:
            return
        self._events.emit(written, reason=reason, message=message)
