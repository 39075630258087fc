"""Words the tests of pools share: members and pools with everything at rest."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from bullpen.core.pools.members import Member, Phase, Stage
from bullpen.core.pools.scale_plan import Pool
from bullpen.core.pools.start_throttle import StartHistory
from bullpen.kit.clock import EPOCH

NOON = EPOCH + timedelta(hours=12)
COOLDOWN = timedelta(minutes=5)
TRUSTED = StartHistory(trusted=True)
LONG_AGO = NOON - timedelta(hours=1)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def member(
    number: int, phase: Phase = Phase.READY, *, age_s: float = 3600, **overrides: object
) -> Member:
    since = NOON - seconds(age_s)
    ready = phase is Phase.READY
    base = Member(
        name=f"rpi4-{number}",
        phase=phase,
        idle=ready and not overrides.get("leased", False),
        created=since,
        since=since,
        ready_at=since if ready else None,
        stage=Stage.UP,
    )
    return replace(base, **overrides)  # type: ignore[arg-type]


def pool(*members: Member, **overrides: object) -> Pool:
    base = Pool(name="rpi4", cooldown=COOLDOWN, members=members, start_history=TRUSTED)
    return replace(base, **overrides)  # type: ignore[arg-type]
