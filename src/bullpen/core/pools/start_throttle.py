"""How many members a pool may have starting at once.

A revision that is known to start may start any number of members at once. A new revision
starts with a few, and one that has just failed with a single member after a pause; each
success doubles the number. After several failures in a row, only a single probe is started
now and then. A member that could not be reset after its lease counts as a failure too; then
only a member that was reset counts as a success.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from bullpen.core.pools.member_index import MemberSubset
from bullpen.core.pools.members import RESET_FAILED, STARTING, Member, Phase, Stage
from bullpen.kit.clock import Backoff
from bullpen.kit.times import shifted

STARTING_MAX = 1_000
"""Members starting at once in one pool, even if all starts succeed."""

BACKOFF = Backoff(first=timedelta(seconds=1), cap=timedelta(minutes=1))
"""The pause after consecutive failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartThrottle:
    first: int = 16
    """Members starting at once while it is unknown whether they will succeed."""

    trusted_after: int = 16
    """After this many successes, or all members that are wanted, there is no limit any more."""

    stop_after: int = 5
    """Consecutive failures after which only probes are started."""

    backoff: Backoff = BACKOFF
    stable_after: timedelta = timedelta(seconds=10)
    """After a failure, a member counts as a success once it has been ready for this long."""


START_THROTTLE = StartThrottle()


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
    """Why no member, or only a probe, is started now."""

    reason: str
    message: str
    until: datetime | None = None
    capacity: bool = False
    """Members wait for capacity at the backend, or for its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartHistory:
    """What is known about earlier starts of a pool's members."""

    trusted: bool = False
    """The current revision has started before, and has not failed since."""

    failures: Failures | None = None
    throttle: StartThrottle = START_THROTTLE


UNTRIED = StartHistory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """How many more members may be started now, and why not more."""

    count: int
    hold: Hold | None = None


def allowance(
    start_history: StartHistory, members: MemberSubset, *, held: Hold | None = None, now: datetime
) -> Allowance:
    """How many more members may be started now.

    ``held`` is the capacity hold of the last pass. It lasts until the backend has been asked for
    every member again, which takes a moment after a restart.
    """
    waiting = [m for m in members.unusual if m.phase is Phase.HELD]
    if waiting:
        # Another member would be held as well; the backend reports when it has capacity.
        return Allowance(count=0, hold=_held(waiting))
    if held is not None and any(_is_unasked(m) for m in members.unusual):
        return Allowance(count=0, hold=held)
    if any(m.blames_template and m.current for m in members.unusual):
        # A failure is recorded first; the next pass decides what it means for the next attempt.
        return Allowance(count=0)
    starting = sum(m.phase in STARTING for m in members.unusual)
    if start_history.trusted:
        return Allowance(count=max(0, STARTING_MAX - starting))
    failures, won = start_history.failures, sum(at <= now for at in _up(start_history, members))
    if failures is None:
        return Allowance(count=max(0, max(start_history.throttle.first, 2 * won) - starting))
    if won:
        return Allowance(count=max(0, 2 * won - starting))
    hold = _pause(failures, start_history.throttle)
    if now < failures.retry_at:
        return Allowance(count=0, hold=hold)
    return Allowance(count=max(0, 1 - starting), hold=hold)


def trust_restored(
    start_history: StartHistory, members: MemberSubset, *, short: bool, now: datetime
) -> StartHistory:
    """``start_history`` after observing the members; ``short`` is whether more are wanted.

    A revision is trusted after enough successes, or after any success once all wanted members
    exist.
    """
    if start_history.trusted:
        return start_history
    won = sum(proven <= now for proven in _proven(start_history, members))
    starting = any(m.phase in STARTING for m in members.unusual)
    settled = won > 0 and not short and not starting
    if won >= start_history.throttle.trusted_after or settled:
        return StartHistory(trusted=True, throttle=start_history.throttle)
    return start_history


def failures_cleared(
    start_history: StartHistory, members: MemberSubset, *, now: datetime
) -> StartHistory:
    """``start_history`` without its failures once a lease got a member created after them.

    In a busy pool of single-use members no member stays ready for long; without this rule,
    failures hours apart would count as consecutive.
    """
    failures = start_history.failures
    if failures is None:
        return start_history
    if failures.reason == RESET_FAILED:
        had = any(m.current and m.reset_at and failures.at < m.reset_at <= now for m in members)
    else:
        had = any(_was_leased(m) and failures.at < m.created <= now for m in members)
    return StartHistory(throttle=start_history.throttle) if had else start_history


def _was_leased(member: Member) -> bool:
    return member.current and (member.leased or member.phase in (Phase.FINISHING, Phase.SPENT))


def failed(
    start_history: StartHistory, failures: Sequence[Member], *, now: datetime, chance: random.Random
) -> StartHistory:
    """``start_history`` after these members failed to start."""
    if not failures:
        return start_history
    before = start_history.failures.count if start_history.failures else 0
    count, last = before + len(failures), failures[-1]
    noted = Failures(
        count=count,
        at=now,
        retry_at=now + start_history.throttle.backoff.delay(count, chance),
        reason=last.cause,
        detail=last.detail,
    )
    return StartHistory(trusted=False, failures=noted, throttle=start_history.throttle)


def wakes(start_history: StartHistory, members: MemberSubset) -> tuple[datetime, ...]:
    """When time alone changes how many members may be started, or whether they are trusted."""
    if start_history.trusted or start_history.failures is None:
        return ()
    return (start_history.failures.retry_at, *_proven(start_history, members))


def _up(start_history: StartHistory, members: MemberSubset) -> list[datetime]:
    """When members of the current revision became ready, after the last failure.

    These times are whole seconds. A member that became ready in the second of a failure may
    have done so before it, and would clear every failure during the rest of that second.
    """
    failures = start_history.failures
    since = failures.at if failures else None
    resets = failures is not None and failures.reason == RESET_FAILED
    ready = (m for m in members if m.current and m.phase is Phase.READY)
    up = (m.reset_at if resets else m.ready_at for m in ready)
    return [at for at in up if at is not None and (since is None or at > since)]


def _proven(start_history: StartHistory, members: MemberSubset) -> list[datetime]:
    """When each of them has been ready for long enough to count as a success."""
    stable = start_history.throttle.stable_after if start_history.failures else timedelta(0)
    return [shifted(at, stable) for at in _up(start_history, members)]


def _is_unasked(member: Member) -> bool:
    return member.phase is Phase.STARTING and member.stage is Stage.ABSENT


def _held(held: Sequence[Member]) -> Hold:
    first = min(held, key=lambda m: m.name)
    text = first.detail or "the backend has no capacity"
    return Hold(
        reason=first.cause or "NoCapacity",
        message=f"{len(held)} waiting for capacity: {text}",
        capacity=True,
    )


def _pause(failures: Failures, throttle: StartThrottle) -> Hold:
    times = "once" if failures.count == 1 else f"{failures.count} times in a row"
    stopped = failures.count >= throttle.stop_after
    cause = f"{failures.reason}: {failures.detail}" if failures.detail else failures.reason
    tried = "starts are paused, one member is tried" if stopped else "the next try is"
    what = "could not be reset" if failures.reason == RESET_FAILED else "failed to start"
    return Hold(
        reason="StartStopped" if stopped else "StartBackoff",
        message=f"{what} {times} ({cause}); {tried} at {failures.retry_at:%H:%M:%S} UTC",
        until=failures.retry_at,
    )
