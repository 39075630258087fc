"""What a lease that waits for a pool is told: what is being done, and how long it takes.

The text changes only when the outlook does: every waiting lease carries it, and a text
that counted seconds would write all of them every second.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from bullpen.api.exporterset import ExporterSet
from bullpen.core import conditions
from bullpen.core.pools.members import Member, Phase
from bullpen.core.pools.scale_plan import Plan, Pool
from bullpen.kit import times

BOOT_ASSUMED = timedelta(seconds=10)
"""How long a boot takes as long as none has been measured."""

WEIGHT = 0.3
"""How much the latest boot counts against all before it."""

MARGIN = timedelta(seconds=2)
_STEPS = (1, 2, 3, 4, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300)
_FEW = 10


def typical(before: timedelta | None, boots: Sequence[timedelta]) -> timedelta | None:
    """How long a boot takes, after these; to a tenth of a second, so that it settles.

    What took less than no time was measured across a clock that was set back.
    """
    for boot in (measured for measured in boots if measured >= timedelta(0)):
        before = boot if before is None else before * (1 - WEIGHT) + boot * WEIGHT
    return None if before is None else timedelta(seconds=round(before.total_seconds(), 1))


def lead(boot: timedelta | None) -> timedelta:
    """How long before it is needed a member must begin to boot."""
    return (boot if boot is not None else BOOT_ASSUMED) * 1.5 + MARGIN


def message(pool: Pool, plan: Plan, *, boot: timedelta | None, now: datetime) -> str:
    """What a lease that waits for ``pool`` is told."""
    if plan.hold is not None:
        return _plain(f"pool {pool.name}: {plan.hold.message}")
    if plan.limited:
        return f"pool {pool.name} is at its ceiling of {pool.replicas_max}: waiting for a release"
    starting = [m for m in pool.member_index.unusual if m.phase is Phase.STARTING]
    if not starting:
        return f"pool {pool.name} starts one"
    needed = max(len(starting), pool.waiting)
    text = f"pool {pool.name}: {_roughly(len(starting))} of {_roughly(needed)} starting"
    if boot is None:
        return text
    return f"{text}, about {_seconds(_remaining(starting, boot, now))} s"


def reported(owner: ExporterSet) -> str:
    """The same in the words of a set's status, for who sees nothing else of the pool."""
    name, status = owner.metadata.name, owner.status
    if status.observed_generation < owner.metadata.generation:
        return f"pool {name} is new"
    for type_ in ("Degraded", "ScalingLimited", "Progressing"):
        found = conditions.get(status.conditions, type_)
        if found is not None and str(found.status) == "True":
            return _plain(f"pool {name}: {found.message}")
    return f"pool {name} starts one"


def _remaining(starting: Sequence[Member], boot: timedelta, now: datetime) -> float:
    """Until the last of those that are starting should be ready."""
    return max((times.shifted(m.since, boot) - now).total_seconds() for m in starting)


def _seconds(seconds: float) -> int:
    """Rounded up to one of a few figures."""
    return next((step for step in _STEPS if seconds <= step), 60 * -(-int(seconds) // 60))


def _roughly(count: int) -> str:
    """Exact for a few; many are told by tens."""
    return str(count) if count <= _FEW else f"about {round(count, -1)}"


def _plain(text: str) -> str:
    """Jumpstarter's client takes this word, anywhere in a message, for a stale token."""
    return re.sub(r"(?i)expired", "run out", text)
