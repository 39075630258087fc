"""Pools that other processes look after, as far as waiting leases are concerned.

Whoever sizes a pool says in its status what it is doing; this reads it there. It decides
nothing and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from bullpen.api.exporterset import ExporterSet
from bullpen.controllers.views import Views
from bullpen.core.leases.scheduler import Supply
from bullpen.core.pools import forecast
from bullpen.core.targets import profiles


class RemotePools:
    def __init__(self, views: Views, *, supply_changed: Callable[[str], None]) -> None:
        self._views = views
        self._supply_changed = supply_changed
        views.sets.listen(self._changed)

    def supplies(self, namespace: str) -> tuple[Supply, ...]:
        """The pools of a namespace, for whoever decides about waiting leases."""
        return tuple(
            supply
            for owner in self._views.sets.all(namespace)
            if (supply := _supply(owner)) is not None
        )

    def _changed(self, old: ExporterSet | None, new: ExporterSet | None) -> None:
        """Have waiting leases told what has changed for them."""
        owner = new or old
        assert owner is not None
        if _supply(old) != _supply(new):
            self._supply_changed(owner.metadata.namespace)


def _supply(owner: ExporterSet | None) -> Supply | None:
    """What a set could make; None for one that is gone or going."""
    if owner is None or owner.metadata.deletion_timestamp is not None:
        return None
    return Supply(
        name=owner.metadata.name, labels=profiles.labels(owner), message=forecast.reported(owner)
    )
