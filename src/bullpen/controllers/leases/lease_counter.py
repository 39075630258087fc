"""Counts what happens to leases once, for everything that reports figures of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.lease import Lease
from bullpen.controllers.views import Views
from bullpen.core.leases.lease_figures import Assigned, Figure, figures
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
        self._since = clock.now()
        self._listeners: list[Callable[[Counted], None]] = []
        views.leases.listen(self._changed)

    def listen(self, listener: Callable[[Counted], None]) -> None:
        self._listeners.append(listener)

    def _changed(self, old: Lease | None, new: Lease | None) -> None:
        if new is None:
            return
        for figure in figures(old, new, since=self._since):
            self.count(new.metadata.namespace, new.metadata.uid, figure)

    def count(self, namespace: str, lease_uid: str, figure: Figure) -> None:
        """Tell everything that listens."""
        found = None
        if isinstance(figure, Assigned):
            found = self._exporters.get(namespace, figure.exporter)
        for listener in self._listeners:
            listener(Counted(namespace, lease_uid, figure, found))
