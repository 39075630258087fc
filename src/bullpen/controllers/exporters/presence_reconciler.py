"""Turns connections into the Online condition, and long silence after a lease into Stuck.

An exporter is online as soon as it connects, and offline when it has had no connection for
a grace period. Also writes the reports of exporters that could not be written at once.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from bullpen.api.kinds.exporter import Exporter, ExporterStatus
from bullpen.api.objects import Objects
from bullpen.controllers.object_edit import change_status
from bullpen.controllers.views import Views
from bullpen.core.exporters import presence
from bullpen.errors import Conflict, LabError, NotFound, Unavailable
from bullpen.kit.clock import Clock
from bullpen.runtime.events import Events
from bullpen.runtime.informer import Key, key_of
from bullpen.runtime.loop import Outcome

log = logging.getLogger("bullpen.exporters")

REPORT_RETRY = timedelta(seconds=5)
"""How long after a refusal a report is written again."""


class Connections:
    """Which exporters are connected, and since when in steady time the others are not."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.steady()
        self._open: dict[Key, int] = {}
        self._lost: dict[Key, timedelta] = {}
        """Since when an exporter has been missed."""

        self._unreachable: set[Key] = set()
        """Missed exporters whose machine was silent for so long that no grace is due."""

        self._listeners: list[Callable[[Key], None]] = []

    def listen(self, listener: Callable[[Key], None]) -> None:
        """Call ``listener`` when an exporter gets its first connection or loses its last."""
        self._listeners.append(listener)

    def opened(self, key: Key) -> None:
        self._open[key] = self._open.get(key, 0) + 1
        self.forget(key)
        if self._open[key] == 1:
            self._tell(key)

    def closed(self, key: Key, *, unreachable: bool) -> None:
        """A connection ended; ``unreachable``: because the exporter's machine was silent."""
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]
            self._lost[key] = self._clock.steady()
            if unreachable:
                self._unreachable.add(key)
            self._tell(key)

    def _tell(self, key: Key) -> None:
        for listener in self._listeners:
            listener(key)

    def heard(self, key: Key) -> None:
        """The exporter called without a connection: it is about to connect, or just left."""
        if key not in self._open:
            self._lost[key] = self._clock.steady()
            self._unreachable.discard(key)

    def connected(self, key: Key) -> bool:
        return key in self._open

    def forget(self, key: Key) -> None:
        """The exporter is connected, or was deleted."""
        self._lost.pop(key, None)
        self._unreachable.discard(key)

    def missed_in(self, key: Key) -> timedelta:
        """Time until an exporter that is not connected counts as offline; 0 or less if it does."""
        lost, steady = self._lost.get(key), self._clock.steady()
        if lost is None:
            return self._started + presence.START_GRACE - steady
        return lost - steady + (timedelta(0) if key in self._unreachable else presence.GRACE)


Edit = Callable[[Exporter], ExporterStatus]
"""The status of an exporter after a report."""


@dataclass(slots=True)
class _Report:
    edit: Edit
    writers: int = 0
    unwritten: bool = True


class Reports:
    """The latest report of each exporter that exists, until it is written.

    ``jmp run`` repeats a report only while the service is unavailable. After any other refusal
    it goes on as if it had been heard, and an exporter whose report that it is available got
    lost would count as busy until it is restarted.
    """

    def __init__(self, objects: Objects, views: Views, *, failed: Callable[[Key], None]) -> None:
        """``failed`` is called with an exporter whose report is kept to be written later."""
        self._objects = objects
        self._view = views.exporters
        self._failed = failed
        self._newest: dict[str, _Report] = {}
        """By uid of the exporter."""

        views.exporters.listen(self._changed)

    def _changed(self, old: Exporter | None, new: Exporter | None) -> None:
        if new is None and old is not None:
            self.forget(old)

    def forget(self, exporter: Exporter) -> None:
        """The exporter was deleted, or is a new process that will report by itself."""
        self._newest.pop(exporter.metadata.uid, None)

    async def write(self, exporter: Exporter, edit: Edit) -> Exporter:
        """Write a report. Reports may be skipped, but are never written out of order."""
        report = self._newest.setdefault(exporter.metadata.uid, _Report(edit))
        report.edit, report.unwritten = edit, True
        try:
            return await self._write(exporter, report)
        finally:
            if self.pending(exporter):
                self._failed(key_of(exporter))

    def pending(self, exporter: Exporter) -> bool:
        """Whether a report of the exporter is to be written with ``rewrite``."""
        report = self._newest.get(exporter.metadata.uid)
        return report is not None and not report.writers

    async def rewrite(self, exporter: Exporter) -> None:
        """Write the pending report; one that fails again stays pending."""
        await self._write(exporter, self._newest[exporter.metadata.uid])

    async def _write(self, exporter: Exporter, report: _Report) -> Exporter:
        """Write the newest report, which may be newer than the one that this was called for.

        A write that waited for the disk must not undo a newer one, nor rely on its caller, which
        may leave before it is written.
        """
        used = report.edit

        def newest(found: Exporter) -> ExporterStatus:
            nonlocal used
            used = report.edit
            return used(found)

        report.writers += 1
        try:
            written = await change_status(self._objects, self._view, exporter, newest)
        except NotFound:
            report.unwritten = False
            raise
        else:
            report.unwritten = report.edit is not used
            return written
        finally:
            report.writers -= 1
            done = not report.writers and not report.unwritten
            if done and self._newest.get(exporter.metadata.uid) is report:
                self.forget(exporter)


class PresenceReconciler:
    """Reconciles the Online and Stuck conditions of one exporter."""

    name = "presence"

    def __init__(
        self,
        objects: Objects,
        views: Views,
        connections: Connections,
        reports: Reports,
        *,
        clock: Clock,
        events: Events,
        stuck_after: timedelta,
    ) -> None:
        self._objects = objects
        self._views = views
        self._connections = connections
        self._reports = reports
        self._clock = clock
        self._events = events
        self._stuck_after = stuck_after
        self._settling: dict[Key, timedelta] = {}
        """Since when, in steady time, an exporter has had no lease without being available."""

    async def reconcile(self, key: Key) -> Outcome:
        exporter = self._views.exporters.get(*key)
        if exporter is None:
            self._settling.pop(key, None)
            self._connections.forget(key)
            return Outcome()
        if presence.stale(exporter):
            # The change written here starts the next pass.
            with contextlib.suppress(NotFound):
                await change_status(
                    self._objects, self._views.exporters, exporter, presence.confirmed
                )
            return Outcome()
        if self._connections.connected(key):
            return await self._present(key, exporter)
        self._settling.pop(key, None)
        return await self._absent(key, exporter)

    async def _present(self, key: Key, exporter: Exporter) -> Outcome:
        if self._reports.pending(exporter):
            return await self._rewrite(exporter)
        if not presence.online(exporter) and not presence.leaving(exporter):
            await self._write(exporter, presence.seen, reason="ExporterOnline", message="connected")
            return Outcome()
        if presence.settling(exporter):
            return await self._overdue(key, exporter)
        self._settling.pop(key, None)
        if presence.stuck(exporter):
            await self._write(
                exporter, presence.settled, reason="ExporterSettled", message="available again"
            )
        return Outcome()

    async def _rewrite(self, exporter: Exporter) -> Outcome:
        """Write a report that could not be written; the change starts the next pass."""
        try:
            await self._reports.rewrite(exporter)
        except (Unavailable, Conflict, NotFound):
            raise
        except LabError as error:
            facts = {"key": exporter.metadata.name, "cause": error.message, "retry": REPORT_RETRY}
            log.warning("the report of an exporter is refused", extra=facts)
            return Outcome(wake_at=self._clock.now() + REPORT_RETRY)
        return Outcome()

    async def _absent(self, key: Key, exporter: Exporter) -> Outcome:
        if not presence.online(exporter):
            return Outcome()
        now = self._clock.now()
        missed = now + self._connections.missed_in(key)
        due = presence.gone_at(exporter, missed, now=now)
        if due > now:
            return Outcome(wake_at=due)
        text = "the connection was lost"
        await self._write(exporter, presence.lost, reason="ExporterOffline", message=text)
        return Outcome()

    async def _overdue(self, key: Key, exporter: Exporter) -> Outcome:
        """Report the exporter as stuck once it has taken too long; wake again at that time."""
        now, steady = self._clock.now(), self._clock.steady()
        taken = steady - self._settling.setdefault(key, steady)
        if presence.stuck(exporter):
            return Outcome()
        if taken < self._stuck_after:
            return Outcome(wake_at=now + (self._stuck_after - taken))
        since = now - taken

        def hung(found: Exporter, *, now: datetime) -> ExporterStatus:
            return presence.hung(found, since=since, now=now)

        text = f"no lease since {since:%H:%M:%S} UTC, but still {exporter.status.exporter_status}"
        await self._write(exporter, hung, reason="ExporterStuck", message=text, warning=True)
        return Outcome()

    async def _write(
        self,
        exporter: Exporter,
        edit: Callable[..., ExporterStatus],
        *,
        reason: str,
        message: str,
        warning: bool = False,
    ) -> None:
        now = self._clock.now()
        try:
            written = await change_status(
                self._objects, self._views.exporters, exporter, lambda e: edit(e, now=now)
            )
        except NotFound:
            return
        self._events.emit(written, reason=reason, message=message, warning=warning)
