"""Deletes ended leases whose retention is over.

No view holds ended leases, so they are read from the API, page by page and rarely. An ended
lease may be kept for longer than its retention by the time between two such readings. The first
reading also recalls what clients used before the process started, for the fair share.
"""

from __future__ import annotations

import contextlib
import logging
from datetime import datetime, timedelta

from bullpen.api.kinds.lease import ENDED_LABEL, Lease
from bullpen.api.objects import Objects
from bullpen.controllers.labs import Labs
from bullpen.controllers.object_edit import change, together
from bullpen.controllers.views import Views
from bullpen.core.leases import lifecycle
from bullpen.errors import Conflict, NotFound
from bullpen.kit.clock import Clock
from bullpen.runtime.loop import Outcome

log = logging.getLogger("bullpen.leases")

SHARE = 24
"""Readings in the time of one retention."""

PAUSE_MIN, PAUSE_MAX = timedelta(seconds=1), timedelta(hours=1)
"""Limits of the time between two readings."""

FIRST_PAUSE_MAX = timedelta(minutes=1)
"""The time before the first reading; a start has more urgent work."""


def pause(retention: timedelta) -> timedelta:
    """The time between two readings."""
    return min(max(retention / SHARE, PAUSE_MIN), PAUSE_MAX)


class LeaseRetentionReconciler:
    """Reconciles all ended leases; its one key is empty."""

    name = "lease-retention"

    def __init__(
        self, objects: Objects, views: Views, labs: Labs, *, retention: timedelta, clock: Clock
    ) -> None:
        self._objects = objects
        self._view = views.leases
        self._labs = labs
        self._started: datetime | None = clock.now()
        """When this process started; None when what was used before has been recalled."""

        self._retention = retention
        self._clock = clock
        self._pause = pause(retention)
        self._due = clock.steady() + min(self._pause, FIRST_PAUSE_MAX)
        """The steady time of the next reading."""

    async def reconcile(self, _: str) -> Outcome:
        if self._clock.steady() >= self._due:
            await self._sweep()
            self._due = self._clock.steady() + self._pause
        return Outcome(wake_at=self._clock.now() + (self._due - self._clock.steady()))

    async def _sweep(self) -> None:
        deleted = 0
        ended = self._objects.pages(Lease, labels=ENDED_LABEL)
        async with contextlib.aclosing(ended) as pages:
            async for page in pages:
                self._recall(page)
                deleted += await self._look_at(page)
        self._started = None
        if deleted:
            log.info("ended leases deleted", extra={"key": "", "leases": deleted})

    def _recall(self, page: tuple[Lease, ...]) -> None:
        if self._started is None:
            return
        now = self._clock.now()
        for lease in page:
            if lease.status.end_time is not None and lease.status.end_time < self._started:
                self._labs.recall(lease, now=now)

    async def _look_at(self, page: tuple[Lease, ...]) -> int:
        """Delete what is over; returns how many that were."""
        now = self._clock.now()
        open_ones = [lease for lease in page if not lease.status.ended]
        over = [
            lease
            for lease in page
            if lease.status.ended and lifecycle.kept_until(lease, self._retention) <= now
        ]
        acts = (*map(self._delete, over), *map(self._remove_label, open_ones))
        for error in await together(acts):
            # A lease that changed meanwhile is looked at in the next reading.
            if error is not None and not isinstance(error, (Conflict, NotFound)):
                raise error
        return len(over)

    async def _delete(self, lease: Lease) -> None:
        await self._objects.delete(lease)

    async def _remove_label(self, lease: Lease) -> None:
        """Remove the label from an open lease: with it, no process would ever end the lease."""
        log.warning("open lease was labelled as ended", extra={"key": lease.metadata.name})
        written = await change(self._objects, self._view, lease, lifecycle.without_ended_label)
        self._view.observe(written)
