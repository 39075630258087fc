"""The newest ended leases of a namespace, for timelines and for the pages of targets.

No view holds ended leases. Those of a namespace are read once, when a page first asks for them;
those that end later are added as they leave the view.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta

from bullpen.api.kinds.lease import ENDED_LABEL, Lease
from bullpen.api.objects import Objects
from bullpen.controllers.views import Views
from bullpen.core.leases import lifecycle
from bullpen.kit.clock import Clock

LEASES_MAX = 1_000
"""Ended leases of a namespace that are kept."""

NAMESPACES_MAX = 20
"""Namespaces that are kept; a further one takes the place of the one looked at longest ago."""

_NEVER = datetime.min.replace(tzinfo=UTC)


class EndedLeases:
    """Only leases that had a target: of the others a timeline has nothing to show."""

    def __init__(self, views: Views, objects: Objects, *, retention: timedelta, clock: Clock):
        self._objects = objects
        self._retention = retention
        self._clock = clock
        self._kept: dict[str, dict[str, Lease]] = {}
        """By namespace, the one looked at longest ago first, and by name."""

        self._reading = asyncio.Lock()
        views.leases.listen(self._changed)

    def _changed(self, old: Lease | None, new: Lease | None) -> None:
        if new is None and old is not None and old.status.ended:
            kept = self._kept.get(old.metadata.namespace)
            if kept is not None:
                _add(kept, (old,))

    async def of(self, namespace: str) -> list[Lease]:
        """The newest, oldest first, without those whose retention is over."""
        async with self._reading:
            kept = self._kept.pop(namespace, None)
            if kept is not None:
                self._kept[namespace] = kept
            else:
                kept = await self._read(namespace)
        now = self._clock.now()
        found = (x for x in kept.values() if lifecycle.kept_until(x, self._retention) > now)
        return sorted(found, key=_end)

    async def _read(self, namespace: str) -> dict[str, Lease]:
        # What ends during the reading is added to it too.
        kept = self._kept[namespace] = {}
        while len(self._kept) > NAMESPACES_MAX:
            del self._kept[next(iter(self._kept))]
        ended = self._objects.pages(Lease, namespace=namespace, labels=ENDED_LABEL)
        try:
            async with contextlib.aclosing(ended) as pages:
                async for page in pages:
                    _add(kept, page)
        except BaseException:
            # Half of them would be taken for all.
            self._kept.pop(namespace, None)
            raise
        return kept


def _add(kept: dict[str, Lease], found: tuple[Lease, ...]) -> None:
    kept.update({x.metadata.name: x for x in found if x.status.exporter_ref is not None})
    if len(kept) > LEASES_MAX:
        for lease in sorted(kept.values(), key=_end)[: len(kept) - LEASES_MAX]:
            del kept[lease.metadata.name]


def _end(lease: Lease) -> tuple[datetime, str]:
    return lease.status.end_time or _NEVER, lease.metadata.name
