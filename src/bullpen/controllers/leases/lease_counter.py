"""Counts what happens to leases once, for everything that reports figures of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease
from bullpen.controllers.views import Views
from bullpen.core.leases.lease_figures import (
    Assigned,
    Ended,
    Figure,
    Refused,
    Requested,
    figures,
    measured_wait,
)
from bullpen.kit.clock import Clock


@dataclass(frozen=True, slots=True)
class Counted:
    """A figure, and what it is about."""

    namespace: str
    lease_uid: str
    figure: Figure
    exporter: Exporter | None = None
    """Of an assignment the exporter, if it still exists."""


class LeaseCounter:
    """Counts from the moment that it is made."""

    def __init__(self, views: Views, *, clock: Clock) -> None:
        self._exporters = views.exporters
        self._clock = clock
        self._since = clock.now()
        self._requested: dict[str, timedelta] = {}
        """When a lease that waits was seen first, by its uid, in steady time."""

        self._listeners: list[Callable[[Counted], None]] = []
        views.leases.listen(self._changed)

    def listen(self, listener: Callable[[Counted], None]) -> None:
        self._listeners.append(listener)

    def _changed(self, old: Lease | None, new: Lease | None) -> None:
        lease = new or old
        assert lease is not None
        uid = lease.metadata.uid
        if new is None:
            self._requested.pop(uid, None)
            return
        for figure in figures(old, new, since=self._since):
            match figure:
                case Requested():
                    if new.status.begin_time is None:
                        self._requested[uid] = self._clock.steady()
                case Assigned():
                    figure = replace(figure, waited=self._waited(new, figure.waited))
                case Refused() | Ended():
                    self._requested.pop(uid, None)
            self.count(new.metadata.namespace, uid, figure)

    def _waited(self, lease: Lease, recorded: timedelta) -> timedelta:
        seen = self._requested.pop(lease.metadata.uid, None)
        known_for = self._clock.steady() - seen if seen is not None else None
        return measured_wait(lease, recorded, now=self._clock.now(), known_for=known_for)

    def count(self, namespace: str, lease_uid: str, figure: Figure) -> None:
        """Tell everything that listens."""
        found = None
        if isinstance(figure, Assigned):
            found = self._exporters.get(namespace, figure.exporter)
        for listener in self._listeners:
            listener(Counted(namespace, lease_uid, figure, found))
