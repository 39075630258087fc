"""How many members a pool may have starting at once.

What is known to start may start in any number at once. What is new starts with a few,
and what has just failed with one, after a pause; each success doubles the number. After
several failures in a row nothing is started any more but a single probe now and then.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from bullpen.core.crew import Part
from bullpen.core.members import STARTING, Member, Phase
from bullpen.kit.backoff import Backoff
from bullpen.kit.times import shifted

STARTING_MAX = 1_000
"""Starting at once in one pool, however well it goes."""

BACKOFF = Backoff(first=timedelta(seconds=1), cap=timedelta(minutes=1))
"""The pause after failures in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    first: int = 16
    """Starting at once while nobody knows whether they will."""

    trusted_after: int = 16
    """So many successes, or all that are wanted, and there is no limit any more."""

    stop_after: int = 5
    """Failures in a row after which only probes are started."""

    backoff: Backoff = BACKOFF
    stable_after: timedelta = timedelta(seconds=10)
    """After a failure, a success is a member that has been ready for so long."""


RAMP = Ramp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Members that failed to start, with no success since."""

    count: int
    at: datetime
    retry_at: datetime
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Why nothing, or only a probe, is started now."""

    reason: str
    message: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Footing:
    """What is known about how the members of a pool start."""

    trusted: bool = False
    """The present revision has started before, and has not failed since."""

    failures: Failures | None = None
    ramp: Ramp = RAMP


UNTRIED = Footing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """How many more may be started now, and what stands against more."""

    count: int
    hold: Hold | None = None


def allowance(footing: Footing, members: Part, *, now: datetime) -> Allowance:
    """How many more members may be started now."""
    held = [m for m in members.unusual if m.phase is Phase.HELD]
    if held:
        # One more would be held as well; the backend says when there is room.
        return Allowance(count=0, hold=_held(held))
    if any(m.phase is Phase.FAILED and m.current for m in members.unusual):
        # A failure is noted first: what it means for the next try is known a pass later.
        return Allowance(count=0)
    starting = sum(m.phase in STARTING for m in members.unusual)
    if footing.trusted:
        return Allowance(count=max(0, STARTING_MAX - starting))
    failures, won = footing.failures, sum(at <= now for at in _up(footing, members))
    if failures is None:
        return Allowance(count=max(0, max(footing.ramp.first, 2 * won) - starting))
    if won:
        return Allowance(count=max(0, 2 * won - starting))
    hold = _pause(failures, footing.ramp)
    if now < failures.retry_at:
        return Allowance(count=0, hold=hold)
    return Allowance(count=max(0, 1 - starting), hold=hold)


def regained(footing: Footing, members: Part, *, short: bool, now: datetime) -> Footing:
    """``footing`` after a look at the members; ``short`` is whether more are wanted.

    Trust comes with enough successes, or with any once all that are wanted are there.
    """
    if footing.trusted:
        return footing
    won = sum(proven <= now for proven in _proven(footing, members))
    starting = any(m.phase in STARTING for m in members.unusual)
    settled = won > 0 and not short and not starting
    if won >= footing.ramp.trusted_after or settled:
        return Footing(trusted=True, ramp=footing.ramp)
    return footing


def forgiven(footing: Footing, members: Part, *, now: datetime) -> Footing:
    """``footing`` without its failures once somebody got a member that was made after them.

    In a busy pool of single-use members none is ever ready for long; without this, failures
    that lie hours apart would count as failures in a row.
    """
    failures = footing.failures
    if failures is None:
        return footing
    had = any(_was_had(m) and failures.at < m.created <= now for m in members)
    return Footing(ramp=footing.ramp) if had else footing


def _was_had(member: Member) -> bool:
    return member.current and (member.leased or member.phase in (Phase.FINISHING, Phase.SPENT))


def failed(
    footing: Footing, failures: Sequence[Member], *, now: datetime, chance: random.Random
) -> Footing:
    """``footing`` after these members failed to start."""
    if not failures:
        return footing
    before = footing.failures.count if footing.failures else 0
    count, last = before + len(failures), failures[-1]
    noted = Failures(
        count=count,
        at=now,
        retry_at=now + footing.ramp.backoff.delay(count, chance),
        reason=last.cause,
        detail=last.detail,
    )
    return Footing(trusted=False, failures=noted, ramp=footing.ramp)


def wakes(footing: Footing, members: Part) -> tuple[datetime, ...]:
    """When time alone changes what may be started, or what is trusted."""
    if footing.trusted or footing.failures is None:
        return ()
    return (footing.failures.retry_at, *_proven(footing, members))


def _up(footing: Footing, members: Part) -> list[datetime]:
    """When members of the present revision became ready, after the last failure.

    These times are whole seconds. What was ready in the second of a failure may have been so
    before it, and would let one failure after the other pass for the rest of that second.
    """
    since = footing.failures.at if footing.failures else None
    up = (m.ready_at for m in members if m.current and m.phase is Phase.READY)
    return [at for at in up if at is not None and (since is None or at > since)]


def _proven(footing: Footing, members: Part) -> list[datetime]:
    """When each of them has been ready for so long that it counts as a success."""
    stable = footing.ramp.stable_after if footing.failures else timedelta(0)
    return [shifted(at, stable) for at in _up(footing, members)]


def _held(held: Sequence[Member]) -> Hold:
    first = min(held, key=lambda m: m.name)
    text = first.detail or "the backend takes no more"
    return Hold(reason=first.cause or "NoCapacity", message=f"{len(held)} wait for room: {text}")


def _pause(failures: Failures, ramp: Ramp) -> Hold:
    times = "once" if failures.count == 1 else f"{failures.count} times in a row"
    stopped = failures.count >= ramp.stop_after
    cause = f"{failures.reason}: {failures.detail}" if failures.detail else failures.reason
    tried = "starting has stopped, one is tried" if stopped else "the next try is"
    return Hold(
        reason="StartStopped" if stopped else "StartBackoff",
        message=f"failed to start {times} ({cause}); {tried} at {failures.retry_at:%H:%M:%S} UTC",
        until=failures.retry_at,
    )
