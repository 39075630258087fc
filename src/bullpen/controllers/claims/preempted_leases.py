"""Ends leases for claims with admin access: tells them, and releases them after a grace period."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from bullpen.api.kinds.lease import Lease, LeaseStatus
from bullpen.api.objects import Objects
from bullpen.controllers.labs import Labs
from bullpen.controllers.object_edit import change, change_status
from bullpen.controllers.views import Views
from bullpen.core import conditions
from bullpen.core.claims import claim_lifecycle
from bullpen.core.leases import preemption
from bullpen.core.leases.preemption import PREEMPTED, Taker
from bullpen.runtime.events import Events


class PreemptedLeases:
    def __init__(
        self, objects: Objects, views: Views, labs: Labs, *, events: Events, grace: timedelta
    ) -> None:
        self._objects = objects
        self._view = views.leases
        self._labs = labs
        self._events = events
        self._grace = grace
        self._told: dict[str, set[str]] = {}
        """By namespace, the leases that were told; read once from the lab, then kept."""

    def acts(
        self, namespace: str, wanted: Mapping[str, Taker], *, now: datetime
    ) -> Iterator[Coroutine[Any, Any, None]]:
        """What is to be done. ``wanted``: by name, the leases that end, and for which claim."""
        found = self._labs.of(namespace).open
        told = self._told.get(namespace)
        if told is None:
            told = {name for name, x in found.items() if preemption.told(x.status.conditions)}
        self._told[namespace] = names = {name for name in told | set(wanted) if name in found}
        for name in sorted(names):
            yield self._settle(found[name], wanted.get(name), now)

    def wakes(self, namespace: str, *, now: datetime) -> Iterator[datetime]:
        """When the grace periods end of leases that were told, and when they may be told again."""
        for lease in self._labs.of(namespace).select(self._told.get(namespace, ())):
            yield self._ends_at(lease, now)
            yield preemption.settles_at(lease.status.conditions)

    def _ends_at(self, lease: Lease, now: datetime) -> datetime:
        return preemption.ends_at(lease.status.conditions, grace=self._grace, now=now)

    async def _settle(self, lease: Lease, by: Taker | None, now: datetime) -> None:
        told = preemption.told(lease.status.conditions)
        if told and by is not None and self._ends_at(lease, now) <= now:
            await change(self._objects, self._view, lease, claim_lifecycle.released)
            return
        if told == (by is not None):
            return

        def telling(found: Lease) -> LeaseStatus:
            said = preemption.telling(
                found.status.conditions,
                by,
                grace=self._grace,
                generation=found.metadata.generation,
                now=now,
            )
            return replace(found.status, conditions=conditions.last(said, "Ready"))

        written = await change_status(self._objects, self._view, lease, telling)
        said = conditions.get(written.status.conditions, PREEMPTED)
        if said is not None and preemption.told(written.status.conditions) != told:
            self._events.emit(written, reason=f"Lease{said.reason}", message=said.message)
