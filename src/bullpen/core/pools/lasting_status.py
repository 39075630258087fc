"""What a pool of lasting targets says about itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from bullpen.api import codec
from bullpen.api.kinds.virtualtargetpool import (
    POOL_UID,
    REVISIONS_MAX,
    TemplateRevision,
    UpdateType,
    VirtualTargetPool,
    VirtualTargetPoolStatus,
)
from bullpen.api.meta import Condition
from bullpen.core import conditions
from bullpen.core.pools import decision_log
from bullpen.core.pools.decision_log import Done, Note
from bullpen.core.pools.lasting_pool import (
    Create,
    Delete,
    LastingPlan,
    LastingPool,
    Restart,
    Update,
)
from bullpen.core.pools.refusals import Refusal, on_record, refused_writes


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingReport:
    """What a pass saw, wanted and did."""

    seen: LastingPool
    plan: LastingPlan
    done: tuple[Create | Delete | Update | Restart, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    created: int = 0
    created_disks: int = 0


def status(
    found: VirtualTargetPool, report: LastingReport, *, now: datetime
) -> VirtualTargetPoolStatus:
    """The status of ``found`` after a pass."""
    seen, old = report.seen, found.status
    members, template, usual = seen.members, seen.hash, seen.usual
    live = seen.live
    updated = usual.count + sum(member.effective(template) for member in live)
    available = usual.count - usual.leased + sum(m.ready and not m.leased for m in live)
    counted = replace(
        old,
        observed_generation=seen.pool.metadata.generation,
        replicas=seen.count,
        ready_replicas=usual.count + sum(member.ready for member in members),
        available_replicas=available,
        leased_replicas=usual.leased + sum(member.leased for member in members),
        updated_replicas=updated,
        restart_pending_replicas=sum(
            m.written == template and not m.settled and m.restart_pending for m in live
        ),
        desired_template_hash=template,
        selector=f"{POOL_UID}={found.metadata.uid}",
        created=max(old.created, report.created),
        created_disks=max(old.created_disks, report.created_disks),
        revisions=_revisions(seen.pool, template, now),
        refused_writes=refused_writes(report.refusals, generation=seen.pool.metadata.generation),
        decisions=decision_log.recorded(old.decisions, report.done, now=now),
    )
    return replace(counted, conditions=_conditions(counted, report, now))


def _revisions(
    pool: VirtualTargetPool, template: str, now: datetime
) -> tuple[TemplateRevision, ...]:
    """The templates so far; one that is used again moves to the end."""
    others = tuple(each for each in pool.status.revisions if each.hash != template)
    same = next((each for each in pool.status.revisions if each.hash == template), None)
    last = same or TemplateRevision(
        hash=template, time=now, template=codec.encode(pool.spec.template)
    )
    return (*others, last)[-REVISIONS_MAX:]


def refusals(pool: VirtualTargetPool) -> tuple[Refusal, ...]:
    """The refusals on record; after an edit of the pool, everything is tried at once."""
    return on_record(pool.status.refused_writes, generation=pool.metadata.generation)


def _conditions(
    counted: VirtualTargetPoolStatus, report: LastingReport, now: datetime
) -> tuple[Condition, ...]:
    pool, found = report.seen.pool, counted.conditions
    for type_, (holds, reason, message) in {
        "Available": _available(counted, pool),
        "Progressing": _progressing(report),
        "Synced": _synced(counted, report),
        "ReplicaFailure": _failure(report),
        "Paused": (pool.spec.paused, "Paused" if pool.spec.paused else "Active", ""),
    }.items():
        found = conditions.condition(
            found,
            type_,
            status=holds,
            reason=reason,
            message=message,
            generation=pool.metadata.generation,
            now=now,
        )
    return found


_Said = tuple[bool, str, str]


def _available(counted: VirtualTargetPoolStatus, pool: VirtualTargetPool) -> _Said:
    ready, wanted = counted.ready_replicas, pool.spec.replicas
    text = f"{ready} of {wanted} members are ready"
    if ready >= wanted:
        return True, "AllReplicasReady", text
    return False, "InsufficientReadyReplicas", text


def _progressing(report: LastingReport) -> _Said:
    seen, plan = report.seen, report.plan
    extra = seen.count - seen.pool.spec.replicas
    if plan.waiting:
        text = f"{', '.join(plan.waiting[:5])} leave when their leases end"
        return True, "WaitingForLeases", text
    if extra or plan.missing or plan.actions:
        return True, "ReplicasProgressing", plan.numbers
    return False, "ReplicasSettled", plan.numbers


def _synced(counted: VirtualTargetPoolStatus, report: LastingReport) -> _Said:
    live = report.seen.live_count
    text = f"{counted.updated_replicas} of {live} members have template {report.seen.hash}"
    if counted.updated_replicas == live:
        return True, "PoolSynced", text
    if counted.restart_pending_replicas:
        waits = f"{counted.restart_pending_replicas} await a restart"
        return False, "RestartPendingApproval", f"{text}; {waits}"
    if report.seen.pool.spec.update_strategy.type is UpdateType.ON_DELETE:
        return False, "UpdatedOnDelete", text
    return False, "RolloutInProgress", text


def _failure(report: LastingReport) -> _Said:
    if not report.refusals:
        return False, "NoFailure", ""
    first = report.refusals[0]
    return True, f"{first.operation}Refused", f"{first.name}: {first.reason}: {first.message}"


def notes(done: Sequence[Done]) -> tuple[Note, ...]:
    """One event for each member."""
    return tuple(
        Note(
            reason=_REASONS[type(action).__name__],
            message=f"{action.name} by rule {action.rule}: {action.message}",
        )
        for action in done
    )


_REASONS = {
    "Create": "SuccessfulCreate",
    "Delete": "SuccessfulDelete",
    "Update": "SuccessfulUpdate",
    "Restart": "MemberRestarted",
}
