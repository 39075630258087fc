"""Known routers, and which one the next stream should use.

One router is part of this process. Others announce themselves in coordination Leases, and
are preferred: their streams survive a restart of this process. How long an announcement
counts is measured in steady time from the moment it was seen here, so that neither a clock
that is set nor a difference between two clocks makes a living router disappear.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from bullpen.api.kinds.core import CoordinationLease
from bullpen.errors import Unavailable
from bullpen.kit.clock import Clock

NAMESPACE = "kube-system"
ROUTER_LABEL = "bullpen.dev/router"
ENDPOINT_ANNOTATION = "bullpen.dev/endpoint"
LOAD_ANNOTATION = "bullpen.dev/load"


@dataclass(frozen=True, slots=True)
class Router:
    """The router of this process."""

    endpoint: str
    load: Callable[[], int]
    """Current number of streams."""


@dataclass(slots=True)
class Remote:
    """A router in another process, as it last announced itself."""

    endpoint: str
    load: int
    until: timedelta
    """When it counts as gone unless it renews before, in steady time."""


class Routers:
    """The known routers; a stream goes to the router with the fewest."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._local: Router | None = None
        self._remote: dict[str, Remote] = {}

    def set_local(self, router: Router) -> None:
        self._local = router

    def observe(self, old: CoordinationLease | None, new: CoordinationLease | None) -> None:
        """A coordination Lease changed; it may be a router's."""
        lease = new or old
        assert lease is not None
        remote = self._seen(old, new) if new is not None else None
        if remote is None:
            self._remote.pop(lease.metadata.name, None)
        else:
            self._remote[lease.metadata.name] = remote

    def _seen(self, old: CoordinationLease | None, new: CoordinationLease) -> Remote | None:
        """The router that a coordination Lease announces; None if it is not a router's.

        A renewal that this process saw happen is fresh. The age of one that was found at the start
        is known by the wall clock alone.
        """
        annotations, renewed = new.metadata.annotations, new.spec.renew_time
        endpoint = annotations.get(ENDPOINT_ANNOTATION, "")
        if ROUTER_LABEL not in new.metadata.labels or renewed is None or not endpoint:
            return None
        try:
            load = int(annotations.get(LOAD_ANNOTATION, "0"))
        except ValueError:
            load = 0
        lasts = timedelta(seconds=new.spec.lease_duration_seconds or 0)
        known = self._remote.get(new.metadata.name)
        if known is not None and old is not None and old.spec.renew_time == renewed:
            return Remote(endpoint, load, known.until)
        age = max(self._clock.now() - renewed, timedelta(0)) if old is None else timedelta(0)
        return Remote(endpoint, load, self._clock.steady() + lasts - age)

    def choose(self) -> str:
        """The router for the next stream; raises ``Unavailable`` when there is none."""
        steady = self._clock.steady()
        living = [remote for remote in self._remote.values() if remote.until > steady]
        if living:
            chosen = min(living, key=lambda remote: (remote.load, remote.endpoint))
            # Count both legs of the new stream until the router reports them itself.
            chosen.load += 2
            return chosen.endpoint
        if self._local is None:
            raise Unavailable("no router is running; try again shortly")
        return self._local.endpoint
