"""What a lease that waits for a pool is told: what is being done, and how long it takes.

The text changes only when the outlook does. Every waiting lease carries it, so a text that
counted seconds would rewrite all of them every second.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from bullpen.api.kinds.exporterset import ExporterSet
from bullpen.core import conditions
from bullpen.core.leases.requests import Supply
from bullpen.core.matcher import Device
from bullpen.core.pools.boot_times import BootTimes
from bullpen.core.pools.members import Member, Phase
from bullpen.core.pools.scale_plan import Plan, Pool
from bullpen.core.targets import profiles
from bullpen.kit import times

_STEPS = (1, 2, 3, 4, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300)
_FEW = 10


def message(pool: Pool, plan: Plan, *, boots: BootTimes, now: datetime) -> str:
    """The message for a lease that waits for ``pool``."""
    if plan.hold is not None:
        return _plain(f"pool {pool.name}: {plan.hold.message}")
    if plan.limited:
        ceiling = pool.replicas_max
        return f"pool {pool.name} has reached its ceiling of {ceiling}: waiting for a release"
    starting = [m for m in pool.member_index.unusual if m.phase is Phase.STARTING]
    if not starting:
        return f"pool {pool.name} is starting a member"
    needed = max(len(starting), pool.waiting)
    text = f"pool {pool.name}: {_roughly(len(starting))} of {_roughly(needed)} starting"
    if boots.typical is None:
        return text
    about = _seconds(_remaining(starting, boots.typical, now))
    slow = _seconds(_remaining(starting, boots.slow, now)) if boots.slow is not None else about
    return f"{text}, about {about} s{f', at times {slow} s' if slow > about else ''}"


def reported(owner: ExporterSet) -> str:
    """The same message from a set's status, for processes that do not see the pool itself."""
    name, status = owner.metadata.name, owner.status
    if status.observed_generation < owner.metadata.generation:
        return f"pool {name} is being set up"
    for type_ in ("Degraded", "ScalingLimited", "Progressing"):
        found = conditions.get(status.conditions, type_)
        if found is not None and str(found.status) == "True":
            return _plain(f"pool {name}: {found.message}")
    return f"pool {name} is starting a member"


def ceiling(owner: ExporterSet) -> int | None:
    """How many members a set may have for booked leases to count on; None for no limit."""
    found = conditions.get(owner.status.conditions, "Degraded")
    if owner.spec.paused or (found is not None and str(found.status) == "True"):
        return 0
    return owner.spec.max_replicas or None


def supply_of(owner: ExporterSet | None) -> Supply | None:
    """What a set could create, from its status; None if it is deleted or terminating."""
    if owner is None or owner.metadata.deletion_timestamp is not None:
        return None
    return Supply(
        name=owner.metadata.name,
        member=Device(labels=profiles.labels(owner)),
        message=reported(owner),
        ceiling=ceiling(owner),
        boot=owner.status.typical_boot or timedelta(0),
    )


def _remaining(starting: Sequence[Member], boot: timedelta, now: datetime) -> float:
    """The time until the last starting member should be ready."""
    return max((times.shifted(m.since, boot) - now).total_seconds() for m in starting)


def _seconds(seconds: float) -> int:
    """Rounded up to one of a few values."""
    return next((step for step in _STEPS if seconds <= step), 60 * -(-int(seconds) // 60))


def _roughly(count: int) -> str:
    """Exact for small numbers, otherwise in tens."""
    return str(count) if count <= _FEW else f"about {round(count, -1)}"


def _plain(text: str) -> str:
    """Avoid a word that Jumpstarter's client, anywhere in a message, takes for a stale token."""
    return re.sub(r"(?i)expired", "run out", text)
