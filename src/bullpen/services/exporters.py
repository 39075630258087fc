"""The exporter's side: register, say what it is doing, hear of leases, be called.

The Status stream is the exporter's heartbeat and the way it learns of leases. Between
two different leases it must hear ``leased=false``, and within one it must not, also
across reconnects: an exporter that missed the change would listen on the old lease
for ever, and one that heard a false end would run its after-lease hook.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from bullpen.api.exporter import Device, Exporter, ExporterStatus, ExporterStatusValue
from bullpen.api.lease import Lease
from bullpen.api.objects import Objects
from bullpen.controllers.presence import Connections
from bullpen.controllers.views import Views
from bullpen.controllers.writing import change, change_status
from bullpen.core import leasing, presence
from bullpen.core.conditions import condition
from bullpen.errors import NotFound, Refused
from bullpen.kit.clock import Clock
from bullpen.runtime.events import Events
from bullpen.runtime.informer import Key, key_of
from bullpen.services.signals import Signals

OWN_LABELS = "jumpstarter.dev/"
"""Labels with this prefix are the exporter's to set; all others are the administrator's."""

DEVICES_MAX = 1_000
WATCH_SECONDS = 3600.0
TICK_SECONDS = 0.05
"""So that what a timer was set for is over when it fires."""


@dataclass(frozen=True, slots=True)
class Notice:
    """What an exporter is told about its lease."""

    lease: str = ""
    client: str = ""
    uid: str = ""
    """Tells a lease apart from a later one of the same name; not sent."""

    @property
    def leased(self) -> bool:
        return bool(self.lease)

    @property
    def settled(self) -> bool:
        """Whether it can be told: of a lease that is being assigned only the uid is known."""
        return self.leased == bool(self.uid)

    def is_over(self, current: Notice) -> bool:
        """Whether an exporter that was last told this must hear of the end first."""
        if self.uid or not self.leased:
            return self.leased and self.uid != current.uid
        # It listened on a lease that no view knew: only the name is known.
        return current.settled and self.lease != current.lease


@dataclass(slots=True)
class Report:
    """The newest that an exporter said, while it is being written."""

    edit: Callable[[Exporter], ExporterStatus]
    writers: int = 0


class Exporters:
    def __init__(
        self,
        objects: Objects,
        views: Views,
        *,
        connections: Connections,
        presence_changed: Callable[[Key], None],
        signals: Signals,
        clock: Clock,
        events: Events,
    ) -> None:
        self._objects = objects
        self._views = views
        self._connections = connections
        self._presence_changed = presence_changed
        self._signals = signals
        self._clock = clock
        self._events = events
        self._delivered: dict[str, Notice] = {}
        """By uid, what each exporter was last told; survives its reconnects."""

        self._reports: dict[str, Report] = {}
        """By uid, what is being written of what exporters say."""

        self._blind: dict[str, Notice] = {}
        """By uid, what was said without knowing what had been said before, by a process
        that is gone."""

        self._mistaken: dict[str, Notice] = {}
        """By uid, the lease an exporter turned out to hold, other than was believed."""

        self._awaited: dict[str, tuple[object, datetime]] = {}
        """By uid, what an exporter does that it should finish first, and since when."""

        views.exporters.listen(self._changed)
        views.leases.listen(self._lease_changed)

    def _changed(self, old: Exporter | None, new: Exporter | None) -> None:
        exporter = new or old
        assert exporter is not None
        self._signals.notify(("exporter", *key_of(exporter)))
        if new is None:
            self._delivered.pop(exporter.metadata.uid, None)
            self._blind.pop(exporter.metadata.uid, None)
            self._mistaken.pop(exporter.metadata.uid, None)
            self._awaited.pop(exporter.metadata.uid, None)

    def _lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        lease = new or old
        assert lease is not None
        if lease.status.exporter_ref is not None:
            key = (lease.metadata.namespace, lease.status.exporter_ref.name)
            self._signals.notify(("exporter", *key))

    async def register(
        self, exporter: Exporter, *, labels: Mapping[str, str], devices: tuple[Device, ...]
    ) -> str:
        """Take over the exporter's labels and devices; its lease is left alone."""
        if len(devices) > DEVICES_MAX:
            raise Refused(f"an exporter may report at most {DEVICES_MAX} devices")
        exporter = await self._relabel(exporter, labels)
        now = self._clock.now()
        written = await change_status(
            self._objects,
            self._views.exporters,
            exporter,
            lambda e: replace(
                presence.registered_anew(e),
                devices=devices,
                conditions=condition(
                    e.status.conditions,
                    "Registered",
                    status=True,
                    reason="Register",
                    message=_count(devices),
                    generation=e.metadata.generation,
                    now=now,
                ),
            ),
        )
        self._events.emit(
            written, reason="ExporterRegistered", message=f"registered {_count(devices)}"
        )
        return written.metadata.uid

    async def _relabel(self, exporter: Exporter, labels: Mapping[str, str]) -> Exporter:
        own = {k: v for k, v in labels.items() if k.startswith(OWN_LABELS)}

        def relabelled(newest: Exporter) -> Exporter:
            meta = newest.metadata
            kept = {k: v for k, v in meta.labels.items() if not k.startswith(OWN_LABELS)}
            return replace(newest, metadata=replace(meta, labels={**kept, **own}))

        return await change(self._objects, self._views.exporters, exporter, relabelled)

    async def unregister(self, exporter: Exporter, *, reason: str) -> None:
        """The exporter is about to leave, in an orderly way."""
        now = self._clock.now()
        written = await change_status(
            self._objects,
            self._views.exporters,
            exporter,
            lambda e: replace(
                e.status,
                devices=(),
                conditions=condition(
                    e.status.conditions,
                    "Registered",
                    status=False,
                    reason="Unregister",
                    message=reason,
                    generation=e.metadata.generation,
                    now=now,
                ),
            ),
        )
        self._events.emit(written, reason="ExporterUnregistered", message=reason or "unregistered")

    async def report(self, exporter: Exporter, *, value: ExporterStatusValue, message: str) -> None:
        """What the exporter says it is doing. Reports may be skipped, never out of order."""
        now, key, uid = self._clock.now(), key_of(exporter), exporter.metadata.uid
        self._connections.heard(key, now=now)
        if value is ExporterStatusValue.AVAILABLE and not self._connections.connected(key):
            # It has none, whichever it listened on here while another process told it of leases.
            self._delivered.pop(uid, None)
        edit = functools.partial(presence.reported, value=value, message=message, now=now)
        newest = self._reports.setdefault(uid, Report(edit))
        newest.edit = edit
        newest.writers += 1
        try:
            # Each of several writes the newest: one that waited for the disk must not undo it,
            # nor rely on its caller, who may leave before it is written.
            written = await change_status(
                self._objects, self._views.exporters, exporter, lambda e: newest.edit(e)
            )
        finally:
            newest.writers -= 1
            if not newest.writers:
                del self._reports[uid]
        if presence.online(written) != presence.online(exporter):
            reason = "ExporterOnline" if presence.online(written) else "ExporterOffline"
            self._events.emit(written, reason=reason, message=message or value.value)

    async def status(self, exporter: Exporter) -> AsyncGenerator[Notice, None]:
        """What the exporter must know, now and whenever it changes, while it is connected."""
        key, uid = key_of(exporter), exporter.metadata.uid
        self._connections.opened(key)
        self._presence_changed(key)
        try:
            await self._catch_up(key, uid)
            last: Notice | None = None
            while True:
                look = functools.partial(self._news, key, uid, last)
                notice = await self._signals.until(
                    lambda: (("exporter", *key),), look, WATCH_SECONDS
                )
                if notice is not None:
                    self._deliver(uid, notice)
                    last = notice
                    yield notice
        finally:
            self._connections.closed(key, now=self._clock.now())
            self._presence_changed(key)

    async def _catch_up(self, key: Key, uid: str) -> None:
        """Ask the API about an exporter that seems to be free, if it may have been told otherwise.

        A process that is gone may have given it a lease of which no view knows yet.
        """
        if uid not in self._delivered and not self._current(key, uid).leased:
            self._views.exporters.observe(await self._objects.get(Exporter, *key))

    def _deliver(self, uid: str, notice: Notice) -> None:
        if notice.leased and uid not in self._delivered:
            self._blind[uid] = notice
        else:
            self._blind.pop(uid, None)
        self._delivered[uid] = notice

    def listens(self, exporter: Exporter, lease: str) -> None:
        """The exporter opened Listen, so it is known which lease it holds.

        After a restart of the service it may hold one that ended while nobody could
        tell it, and would ignore the next one for ever.
        """
        uid = exporter.metadata.uid
        found = self._views.leases.get(exporter.metadata.namespace, lease)
        held = Notice(lease=lease, uid=found.metadata.uid if found else "")
        told = self._blind.pop(uid, None)
        if uid not in self._delivered:
            self._delivered[uid] = held
        elif told is not None and told.lease != lease:
            self._mistaken[uid] = held
            self._signals.notify(("exporter", *key_of(exporter)))

    def _news(self, key: Key, uid: str, last: Notice | None) -> Notice | None:
        """The next thing to say on this stream, or None if all has been said."""
        current = self._current(key, uid)
        before = self._delivered.get(uid, Notice()) if last is None else last
        told = self._mistaken.get(uid, before)
        if told.is_over(current):
            if self._busy(key, uid, told):
                return told if last is None else None
            self._mistaken.pop(uid, None)
            return Notice()
        if not current.settled:
            return None
        self._mistaken.pop(uid, None)
        return None if current == last else current

    def _busy(self, key: Key, uid: str, told: Notice) -> bool:
        """Whether the exporter should finish something before it hears of its lease's end."""
        exporter = self._views.exporters.get(*key)
        assert exporter is not None
        patience = presence.patience(exporter)
        doing = (told.uid, exporter.status.exporter_status)
        now = self._clock.now()
        known, since = self._awaited.get(uid, (None, now))
        if known != doing and patience:
            since = now
            self._awaited[uid] = (doing, now)
            again = functools.partial(self._signals.notify, ("exporter", *key))
            asyncio.get_running_loop().call_later(patience.total_seconds() + TICK_SECONDS, again)
        busy = now - since < patience
        if not busy:
            self._awaited.pop(uid, None)
        return busy

    def _current(self, key: Key, uid: str) -> Notice:
        exporter = self._views.exporters.get(*key)
        if exporter is None or exporter.metadata.uid != uid:
            raise NotFound(f"exporter {key[1]} was removed")
        ref, taken_by = exporter.status.lease_ref, exporter.status.lease_uid
        if ref is None:
            return Notice()
        lease = self._views.leases.get(key[0], ref.name)
        if lease is None or lease.metadata.uid != taken_by:
            return Notice(uid=taken_by)
        if lease.status.ended:
            return Notice()
        if lease.status.exporter_ref is None:
            return Notice(uid=taken_by)
        return Notice(lease=ref.name, client=leasing.holder(lease), uid=taken_by)


def _count(devices: tuple[Device, ...]) -> str:
    return "1 device" if len(devices) == 1 else f"{len(devices)} devices"
