"""The status of a pool: counts, conditions and what the next pass must remember.

Counts state what was observed, not what was just done: the next pass, triggered by our own
writes, sees the result.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from bullpen.api.kinds import exporterset
from bullpen.api.kinds.exporterset import SET_UID, CapacityHold, ExporterSet, ExporterSetStatus
from bullpen.api.meta import Condition
from bullpen.core import conditions
from bullpen.core.matcher import Device
from bullpen.core.pools import boot_times, decision_log
from bullpen.core.pools.boot_times import UNMEASURED, BootTimes
from bullpen.core.pools.decision_log import Note
from bullpen.core.pools.demand import Source
from bullpen.core.pools.member_index import MemberIndex
from bullpen.core.pools.members import (
    RESET_FAILED,
    STARTING,
    SUPPLY,
    Member,
    Phase,
    Stage,
)
from bullpen.core.pools.refusals import Refusal, on_record, refused_writes
from bullpen.core.pools.scale_plan import NAMES_TAKEN, PAUSED, Action, Plan, Pool, Rule, Surplus
from bullpen.core.pools.start_throttle import (
    START_THROTTLE,
    Failures,
    Hold,
    StartHistory,
    StartThrottle,
)

MESSAGE_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why no members can be created for a set until an object is changed."""

    reason: str
    message: str
    """Contains the path of the invalid field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The inputs of a status."""

    pool: Pool
    plan: Plan
    start_history: StartHistory
    """Including the failures of this pass."""

    refusals: tuple[Refusal, ...] = ()
    """Including the refusals of this pass."""

    done: tuple[Action, ...]
    revision: str
    generation: int
    """The generation of the observed set."""

    boots: BootTimes = UNMEASURED
    problem: Problem | None = None


def status(owner: ExporterSet, report: Report, *, now: datetime) -> ExporterSetStatus:
    """The status of ``owner`` after a pass."""
    pool, plan = report.pool, report.plan
    before = owner.status
    return replace(
        counted(before, pool.member_index),
        observed_generation=report.generation,
        selector=f"{SET_UID}={owner.metadata.uid}",
        conditions=_conditions(owner, report, now),
        created=plan.created,
        revision=report.revision,
        proven_revision=_proven(before.proven_revision, report),
        typical_boot=report.boots.typical,
        boot_times=boot_times.on_record(report.boots),
        surplus=_surplus(before.surplus, report),
        start_failures=_start_failures(before.start_failures, report),
        refused_writes=refused_writes(report.refusals, generation=report.generation),
        capacity_hold=_capacity_hold(plan.hold),
        decisions=decision_log.recorded(
            before.decisions, report.done, held=decision_log.held(plan, now=now), now=now
        ),
    )


def counted(before: ExporterSetStatus, members: MemberIndex) -> ExporterSetStatus:
    """``before`` with the counts of these members."""
    phases = _phases(members)
    everybody = members.whole()
    leased, idle = everybody.leased, everybody.idle
    instances = Counter(_instance(m) for m in members.unusual)
    instances["Running"] += members.usual
    lost = phases[Phase.OFFLINE] + phases[Phase.CRASHED] + phases[Phase.FAILED]
    unready = lost + phases[Phase.STARTING] + phases[Phase.HELD]
    return replace(
        before,
        replicas=len(members),
        ready_replicas=phases[Phase.READY],
        available_replicas=idle,
        unavailable_replicas=unready,
        leased_replicas=leased,
        updated_replicas=_updated(members),
        pods_pending=instances["Pending"],
        pods_running=instances["Running"],
        pods_failed=instances["Failed"],
        pods_unknown=instances["Unknown"],
        exporters_active=leased,
        exporters_idle=idle,
        exporters_disabled=phases[Phase.DRAINING],
        exporters_offline=unready,
    )


def _phases(members: MemberIndex) -> Counter[Phase]:
    phases = Counter(m.phase for m in members.unusual)
    phases[Phase.READY] += members.usual
    return phases


def _instance(member: Member) -> str:
    """The state of a member's instance, in the terms used for Pods."""
    if member.phase is Phase.ENDING:
        return "Unknown"
    if member.stage in (Stage.EXITED, Stage.REFUSED):
        return "Succeeded" if member.phase is Phase.SPENT else "Failed"
    if member.stage is Stage.UP and member.phase not in STARTING:
        return "Running"
    return "Pending"


def start_history(
    owner: ExporterSet,
    revision: str,
    *,
    throttle: StartThrottle = START_THROTTLE,
    now: datetime,
) -> StartHistory:
    """The start history of members of ``revision``, as recorded in the status of ``owner``.

    A failure in the future was recorded before the clock was set back. It counts as one of now, so
    that its pause ends, and members that become ready from now on count as successes.
    """
    found = owner.status.start_failures
    failures = None
    if found is not None and found.revision == revision:
        at = min(found.last_time, now)
        failures = Failures(
            count=found.count,
            at=at,
            retry_at=at + (found.retry_time - found.last_time),
            reason=found.reason,
            detail=found.message,
        )
    trusted = failures is None and owner.status.proven_revision == revision
    return StartHistory(trusted=trusted, failures=failures, throttle=throttle)


def refusals(owner: ExporterSet) -> tuple[Refusal, ...]:
    """The refused operations, as recorded in the status of ``owner``; an edit clears them."""
    return on_record(owner.status.refused_writes, generation=owner.metadata.generation)


def capacity_hold(owner: ExporterSet) -> Hold | None:
    """The capacity hold, as recorded in the status of ``owner``."""
    found = owner.status.capacity_hold
    return Hold(reason=found.reason, message=found.message, capacity=True) if found else None


def surplus(owner: ExporterSet, *, watched_since: datetime, now: datetime) -> Surplus | None:
    """The surplus members, as recorded in the status of ``owner``.

    The demand before this process began to watch it is unknown. A time in the future was
    written before the clock was set back.
    """
    found = owner.status.surplus
    if found is None:
        return None
    since = found.since if watched_since < found.since <= now else watched_since
    return Surplus(since=since, count=found.count)


def transitions(before: tuple[Condition, ...], after: tuple[Condition, ...]) -> tuple[Note, ...]:
    """Events about conditions that changed, with upstream's reasons."""
    found = []
    for condition in after:
        reason = _TRANSITIONS.get((condition.type, str(condition.status)))
        old = conditions.get(before, condition.type)
        was = str(old.status) if old else _USUAL.get(condition.type, "")
        if reason is not None and was != str(condition.status):
            warning = condition.type == "Degraded" and str(condition.status) == "True"
            found.append(Note(reason=reason, message=condition.message, warning=warning))
    return tuple(found)


_TRANSITIONS = {
    ("Available", "True"): "ExporterSetAvailable",
    ("Available", "False"): "ExporterSetUnavailable",
    ("Degraded", "True"): "ExporterSetDegraded",
    ("Degraded", "False"): "ExporterSetRecovered",
    ("ScalingLimited", "True"): "ScalingLimited",
    ("ScalingLimited", "False"): "ScalingUnlimited",
}
_USUAL = {"Degraded": "False", "ScalingLimited": "False", "Available": "False"}
"""The assumed status of a condition that was never set: a new set that is not ready is no event."""


def _conditions(owner: ExporterSet, report: Report, now: datetime) -> tuple[Condition, ...]:
    found = owner.status.conditions
    said = {
        "Available": _available(report, was=conditions.holds(found, "Available")),
        "Progressing": _progressing(report),
        "Synced": _synced(report),
        "Degraded": _degraded(report),
        "ScalingLimited": _limited(report),
    }
    said["SetHealthy"] = _healthy(said["Available"], said["Degraded"])
    for type_, (holds, reason, message) in said.items():
        found = conditions.condition(
            found,
            type_,
            status=holds,
            reason=reason,
            message=message[:MESSAGE_MAX],
            generation=report.generation,
            now=now,
        )
    return found


_Said = tuple[bool, str, str]
"""Whether a condition holds, its reason and its message."""


def _available(report: Report, *, was: bool) -> _Said:
    """Whether the floor is ready and the buffer warm, as far as the ceiling allows.

    A pool becomes available with its whole buffer, and stays it with a part: each lease takes
    one member of the buffer, and that is what the buffer is for.
    """
    pool = report.pool
    if report.problem is not None:
        return False, report.problem.reason, report.problem.message
    if pool.paused:
        return False, "Paused", f"{PAUSED}; {_counts(pool)}"
    if pool.on_demand:
        text = "bindingMode is WaitForFirstConsumer: targets are started for leases only"
        return True, "OnDemand", text
    if _phases(pool.member_index)[Phase.READY] < pool.replicas_min:
        return False, "MinimumReplicasNotReady", _counts(pool)
    members = pool.member_index.whole()
    buffer = pool.available_min
    if pool.replicas_max is not None:
        buffer = min(buffer, max(0, pool.replicas_max - members.leased))
    if members.idle < (min(buffer, 1) if was else buffer):
        return False, "WarmBufferNotReady", _counts(pool)
    return True, "MinimumReplicasReady", _counts(pool)


def _counts(pool: Pool) -> str:
    """Existing members of the desired number: "0 of 2 warm, 2 starting"."""
    phases, members = _phases(pool.member_index), pool.member_index.whole()
    if pool.available_min:
        text = f"{members.idle} of {pool.available_min} warm"
    elif pool.replicas_min:
        text = f"{phases[Phase.READY]} of {pool.replicas_min} ready"
    else:
        text = f"{phases[Phase.READY]} ready"
    others = ((Phase.STARTING, "starting"), (Phase.HELD, "waiting"), (Phase.OFFLINE, "offline"))
    leased = f", {members.leased} leased" if members.leased else ""
    return text + leased + "".join(f", {phases[p]} {word}" for p, word in others if phases[p])


def _progressing(report: Report) -> _Said:
    phases = _phases(report.pool.member_index)
    leaving = sum(phases[phase] for phase in _LEAVING)
    if phases[Phase.STARTING]:
        return True, "Starting", f"{phases[Phase.STARTING]} starting"
    if leaving or report.done:
        return True, "Changing", f"{leaving} leaving"
    if report.refusals:
        return False, "Stalled", _refused(report)
    return False, "Settled", _counts(report.pool)


def _synced(report: Report) -> _Said:
    """Whether every member that serves a lease, or will, is of the current template and class."""
    members = report.pool.member_index
    outdated = [m for m in members.unusual if not m.current and m.phase in SUPPLY]
    if not outdated:
        return True, "UpToDate", ""
    leased = sum(m.leased for m in outdated)
    text = f"{_updated(members)} of {len(members)} updated, {leased} outdated and leased"
    return False, "WaitingForLeases" if leased == len(outdated) else "RollingOut", text


def _updated(members: MemberIndex) -> int:
    return members.usual + sum(m.current for m in members.unusual)


_LEAVING = (Phase.SPENT, Phase.CRASHED, Phase.FAILED, Phase.DRAINING, Phase.ENDING)


def _degraded(report: Report) -> _Said:
    if report.problem is not None:
        return True, report.problem.reason, report.problem.message
    if report.refusals:
        return True, report.refusals[0].condition_reason, _refused(report)
    failures = report.start_history.failures
    if failures is not None:
        stopped = failures.count >= report.start_history.throttle.stop_after
        reason = "StartStopped" if stopped else "StartFailing"
        cause = f"{failures.reason}: {failures.detail}" if failures.detail else failures.reason
        what = "resets" if failures.reason == RESET_FAILED else "starts"
        return True, reason, f"{failures.count} {what} failed in a row ({cause})"
    hold = report.plan.hold
    if hold is not None and (hold.capacity or hold.reason == NAMES_TAKEN):
        return True, hold.reason, hold.message
    if report.pool.stuck:
        return True, "RemovalFailing", _stuck(report.pool)
    return False, "Healthy", _counts(report.pool)


def _stuck(pool: Pool) -> str:
    name, why = min(pool.stuck.items())
    count = len(pool.stuck)
    many = "1 member keeps its place" if count == 1 else f"{count} members keep their places"
    return f"{many}, because {name} cannot be removed: {why}"


def _refused(report: Report) -> str:
    return "; ".join(found.text for found in report.refusals)


def _limited(report: Report) -> _Said:
    plan, pool = report.plan, report.pool
    if not plan.limited:
        return False, "WithinLimits", ""
    if pool.paused:
        return True, "Paused", PAUSED
    text = (
        f"the ceiling is {pool.replicas_max}, {plan.wanted} members are needed:"
        f" {_leases(pool.waiting)} waiting, {pool.available_min} kept warm"
    )
    return True, "CeilingReached", text


def _leases(count: int) -> str:
    return "1 lease is" if count == 1 else f"{count} leases are"


def _healthy(available: _Said, degraded: _Said) -> _Said:
    if degraded[0]:
        return False, degraded[1], degraded[2]
    if available[1] == "Paused":
        return True, available[1], available[2]
    return available if not available[0] else (True, "Healthy", "")


def _proven(before: str, report: Report) -> str:
    if report.start_history.trusted:
        return report.revision
    # Until the current revision has started, or failed, the last good one is kept.
    return "" if before == report.revision else before


def _surplus(before: exporterset.Surplus | None, report: Report) -> exporterset.Surplus | None:
    now, done = report.plan.surplus, report.done
    if any(a.rule is Rule.SURPLUS and a not in done for a in report.plan.actions):
        # What could not be drained is still surplus, and has already waited for a cooldown.
        return before
    if now is None:
        return None
    if before is not None and (before.since, before.count) == (now.since, now.count):
        return before
    return exporterset.Surplus(since=now.since, count=now.count)


def _start_failures(
    before: exporterset.StartFailures | None, report: Report
) -> exporterset.StartFailures | None:
    found = report.start_history.failures
    if found is None:
        return None
    made = exporterset.StartFailures(
        count=found.count,
        last_time=found.at,
        retry_time=found.retry_at,
        revision=report.revision,
        reason=found.reason,
        message=found.detail[:MESSAGE_MAX],
    )
    return before if before == made else made


def _capacity_hold(hold: Hold | None) -> CapacityHold | None:
    if hold is None or not hold.capacity:
        return None
    return CapacityHold(reason=hold.reason, message=hold.message[:MESSAGE_MAX])


def source(
    name: str,
    members: MemberIndex,
    *,
    member: Device,
    ceiling: int | None,
    stalled: bool,
    lead: timedelta,
) -> Source:
    """The pool as demand sees it; a ``stalled`` pool creates no members for now."""
    starting = sum(m.phase in STARTING and not m.leased for m in members.unusual)
    room = None if ceiling is None else max(0, ceiling - len(members))
    return Source(
        name=name, member=member, starting=starting, room=0 if stalled else room, lead=lead
    )
