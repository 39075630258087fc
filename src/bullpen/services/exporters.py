"""The exporter's side: register, report a status, be told of leases, be called.

The Status stream is the exporter's heartbeat and the way it learns of leases.
``core.exporters.conversation`` decides what it is told and when.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace

from bullpen.api.kinds.exporter import Device, Exporter, ExporterStatusValue
from bullpen.api.kinds.lease import Lease
from bullpen.api.objects import Objects
from bullpen.controllers.exporters.presence_reconciler import Connections, Reports
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
from bullpen.services.peers import Peer
from bullpen.services.signals import Signals

OWN_LABELS = "jumpstarter.dev/"
"""Labels with this prefix are set by the exporter; all others by the administrator."""

DEVICES_MAX = 1_000
WATCH_SECONDS = 3600.0
TICK_SECONDS = 0.05
"""Added to timers, so that the deadline has passed when they fire."""


class Exporters:
    def __init__(
        self,
        objects: Objects,
        views: Views,
        *,
        connections: Connections,
        reports: Reports,
        presence_changed: Callable[[Key], None],
        signals: Signals,
        clock: Clock,
        events: Events,
    ) -> None:
        self._objects = objects
        self._views = views
        self._connections = connections
        self._reports = reports
        self._presence_changed = presence_changed
        self._signals = signals
        self._clock = clock
        self._events = events
        self._conversations: dict[str, Conversation] = {}
        """By uid of the exporter."""

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
        """Update the exporter's labels and devices; its lease is left alone."""
        if len(devices) > DEVICES_MAX:
            raise Refused(f"an exporter may report at most {DEVICES_MAX} devices")
        self._reports.forget(exporter)
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
        """The exporter announces an orderly shutdown."""
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
        """Record an exporter's report. One that cannot be written now is written later."""
        now, key, uid = self._clock.now(), key_of(exporter), exporter.metadata.uid
        self._connections.heard(key)
        if value is ExporterStatusValue.AVAILABLE and not self._connections.connected(key):
            # An available exporter has no lease, whichever one it listened on here while another
            # process told it of leases.
            self._step(key, uid, BecameAvailable())
        edit = functools.partial(presence.reported, value=value, message=message, now=now)
        written = await self._reports.write(exporter, edit)
        if presence.online(written) != presence.online(exporter):
            reason = "ExporterOnline" if presence.online(written) else "ExporterOffline"
            self._events.emit(written, reason=reason, message=message or value.value)

    async def status(self, exporter: Exporter, peer: Peer) -> AsyncGenerator[Notice, None]:
        """The notices for the exporter, now and whenever they change, while it is connected."""
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
            self._connections.closed(key, unreachable=peer.unreachable)
            self._presence_changed(key)

    async def _catch_up(self, key: Key, uid: str) -> None:
        """Read the API for an exporter that may have a lease that no view knows yet."""
        if self._conversations.get(uid, NEW).doubts(self._current(key, uid)):
            self._views.exporters.observe(await self._objects.get(Exporter, *key))

    def listens(self, exporter: Exporter, lease: str) -> None:
        """The exporter opened Listen on a lease."""
        found = self._views.leases.get(exporter.metadata.namespace, lease)
        event = Listened(lease=lease, uid=found.metadata.uid if found else "")
        self._step(key_of(exporter), exporter.metadata.uid, event)

    def _news(self, key: Key, uid: str, last: Notice | None) -> Notice | None:
        """The next notice to send on this stream, or None if it is up to date."""
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
        """Process an event; returns the notice to send now, if any."""
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
