"""The exporter's side: register, say what it is doing, hear of leases, be called.

The Status stream is the exporter's heartbeat and the way it learns of leases. What it is told
and when is decided in ``core.exporters.conversation``.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace

from bullpen.api.exporter import Device, Exporter, ExporterStatus, ExporterStatusValue
from bullpen.api.lease import Lease
from bullpen.api.objects import Objects
from bullpen.controllers.exporters.presence_reconciler import Connections
from bullpen.controllers.object_edit import change, change_status
from bullpen.controllers.views import Views
from bullpen.core.conditions import condition
from bullpen.core.exporters import conversation, presence
from bullpen.core.exporters.conversation import (
    NEW,
    BecameAvailable,
    Conversation,
    Event,
    Listened,
    Looked,
    Notice,
)
from bullpen.core.leases import lifecycle
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
        self._conversations: dict[str, Conversation] = {}
        """By uid of the exporter."""

        self._reports: dict[str, Report] = {}
        """By uid, what is being written of what exporters say."""

        views.exporters.listen(self._changed)
        views.leases.listen(self._lease_changed)

    def _changed(self, old: Exporter | None, new: Exporter | None) -> None:
        exporter = new or old
        assert exporter is not None
        self._signals.notify(("exporter", *key_of(exporter)))
        if new is None:
            self._conversations.pop(exporter.metadata.uid, None)

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
            # Whichever lease it listened on here while another process told it of leases is over.
            self._step(key, uid, BecameAvailable())
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
                    last = notice
                    yield notice
        finally:
            self._connections.closed(key, now=self._clock.now())
            self._presence_changed(key)

    async def _catch_up(self, key: Key, uid: str) -> None:
        """Ask the API about an exporter that seems to be free, if it may have been told otherwise.

        A process that is gone may have given it a lease of which no view knows yet.
        """
        known = self._conversations.get(uid, NEW)
        if known.told is None and not self._current(key, uid).leased:
            self._views.exporters.observe(await self._objects.get(Exporter, *key))

    def listens(self, exporter: Exporter, lease: str) -> None:
        """The exporter opened Listen on a lease."""
        found = self._views.leases.get(exporter.metadata.namespace, lease)
        event = Listened(lease=lease, uid=found.metadata.uid if found else "")
        self._step(key_of(exporter), exporter.metadata.uid, event)

    def _news(self, key: Key, uid: str, last: Notice | None) -> Notice | None:
        """The next thing to say on this stream, or None if all has been said."""
        current, exporter = self._current(key, uid), self._views.exporters.get(*key)
        assert exporter is not None
        event = Looked(
            current=current,
            said=last,
            doing=exporter.status.exporter_status,
            patience=presence.patience(exporter),
            at=asyncio.get_running_loop().time(),
        )
        return self._step(key, uid, event)

    def _step(self, key: Key, uid: str, event: Event) -> Notice | None:
        """Take an event into account; what is to be said now, if anything."""
        step = conversation.step(self._conversations.get(uid, NEW), event)
        self._conversations[uid] = step.state
        again = functools.partial(self._signals.notify, ("exporter", *key))
        if step.look_again:
            again()
        if step.look_after is not None:
            seconds = step.look_after.total_seconds() + TICK_SECONDS
            asyncio.get_running_loop().call_later(seconds, again)
        return step.notice

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
        return Notice(lease=ref.name, client=lifecycle.holder(lease), uid=taken_by)


def _count(devices: tuple[Device, ...]) -> str:
    return "1 device" if len(devices) == 1 else f"{len(devices)} devices"
