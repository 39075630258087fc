"""Pools sized by other processes, as far as waiting leases are concerned.

The process that sizes a pool reports in the pool's status what it is doing; this module
reads that. It decides nothing and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.controllers.views import Views
from bullpen.core.leases.requests import Supply
from bullpen.core.pools.forecast import supply_of


class RemotePools:
    def __init__(self, views: Views, *, supply_changed: Callable[[str], None]) -> None:
        self._views = views
        self._supply_changed = supply_changed
        views.sets.listen(self._changed)

    def supplies(self, namespace: str) -> tuple[Supply, ...]:
        """The pools of a namespace, for the scheduler."""
        return tuple(
            supply
            for owner in self._views.sets.all(namespace)
            if (supply := supply_of(owner)) is not None
        )

    def _changed(self, old: ExporterSet | None, new: ExporterSet | None) -> None:
        """Start a lease pass, because the message for waiting leases has changed."""
        owner = new or old
        assert owner is not None
        if supply_of(old) != supply_of(new):
            self._supply_changed(owner.metadata.namespace)
