"""Known routers, and which one the next stream should use.

One router is part of this process. Others announce themselves in coordination Leases, and
are preferred: their streams survive a restart of this process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from bullpen.api.core import CoordinationLease
from bullpen.errors import Unavailable
from bullpen.kit import times
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
    until: datetime
    """When it counts as gone unless it renews before."""


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
        remote = _remote(new) if new is not None else None
        if remote is None:
            self._remote.pop(lease.metadata.name, None)
        else:
            self._remote[lease.metadata.name] = remote

    def choose(self) -> str:
        """The router for the next stream; raises ``Unavailable`` when there is none."""
        now = self._clock.now()
        living = [remote for remote in self._remote.values() if remote.until > now]
        if living:
            chosen = min(living, key=lambda remote: (remote.load, remote.endpoint))
            # Count both legs of the new stream until the router reports them itself.
            chosen.load += 2
            return chosen.endpoint
        if self._local is None:
            raise Unavailable("no router is running; try again shortly")
        return self._local.endpoint


def _remote(lease: CoordinationLease) -> Remote | None:
    annotations, spec = lease.metadata.annotations, lease.spec
    if ROUTER_LABEL not in lease.metadata.labels or spec.renew_time is None:
        return None
    try:
        load = int(annotations.get(LOAD_ANNOTATION, "0"))
    except ValueError:
        load = 0
    endpoint = annotations.get(ENDPOINT_ANNOTATION, "")
    lasts = timedelta(seconds=spec.lease_duration_seconds or 0)
    return Remote(endpoint, load, times.shifted(spec.renew_time, lasts)) if endpoint else None
