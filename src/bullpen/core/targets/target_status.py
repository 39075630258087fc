"""What a lasting target says about itself. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from bullpen.api.kinds.virtualtarget import (
    DURING_LEASE,
    RESTART,
    Restarts,
    UpdateApproval,
    VirtualTargetStatus,
)
from bullpen.api.meta import Condition
from bullpen.core.conditions import condition
from bullpen.core.targets import disks, lasting_targets, profiles
from bullpen.core.targets.instances import InstancePhase
from bullpen.core.targets.lasting_targets import ChangeDisks, Start, TargetView, Verdict


def status(seen: TargetView, verdict: Verdict, *, now: datetime) -> VirtualTargetStatus:
    """The status to write before the step of ``verdict`` is performed."""
    target, old = seen.target, seen.target.status
    starts = isinstance(verdict.step, Start)
    stopped = seen.instance is None or seen.instance.phase is InstancePhase.STOPPED
    absent = stopped and seen.listed and seen.available
    host, provider_id, addresses = _place(seen, absent=absent)
    made = seen.profile
    revision = made.revision if made is not None else old.written_revision
    return replace(
        old,
        observed_generation=target.metadata.generation,
        phase=verdict.phase,
        host=host,
        provider_id=provider_id,
        addresses=addresses,
        identity=old.identity or profiles.identity(target.metadata.uid),
        exporter=target.metadata.name if seen.owned else "",
        lease=seen.lease if seen.owned else "",
        written_revision=revision,
        effective_revision=revision if starts else old.effective_revision,
        start_revision=made.start_revision if starts and made is not None else old.start_revision,
        restarted=lasting_targets.asked(seen) if starts else old.restarted,
        disks=() if absent and not starts else _opened(seen, verdict),
        starts=old.starts + starts,
        started_at=now if starts else old.started_at,
        restarts=verdict.ended if verdict.ended is not None else _kept_ends(seen),
        conditions=_conditions(seen, verdict, now),
    )


def _place(seen: TargetView, *, absent: bool) -> tuple[str, str, tuple[str, ...]]:
    """Host, provider's id and addresses of the machine; as before while it cannot be seen."""
    found, old = seen.instance, seen.target.status
    if found is not None:
        return found.host, found.provider_id, found.addresses
    return ("", "", ()) if absent else (old.host, old.provider_id, old.addresses)


def _opened(seen: TargetView, verdict: Verdict) -> tuple[str, ...]:
    """The disks that the machine may have open once the step is under way."""
    named, old = disks.names(seen.target), seen.target.status.disks
    if isinstance(verdict.step, Start):
        return named
    if isinstance(verdict.step, ChangeDisks) or _runs_as_named(seen):
        return tuple(dict.fromkeys((*old, *named)))
    return old


def _runs_as_named(seen: TargetView) -> bool:
    """Whether its machine was started with the disks that the target names.

    A controller that looked before another one had started the machine wrote that none are open.
    """
    found, made = seen.instance, seen.profile
    if (
        found is None
        or made is None
        or found.phase in (InstancePhase.STOPPED, InstancePhase.EXITED)
    ):
        return False
    return made.revision == seen.target.status.effective_revision


def disks_changed(seen: TargetView) -> VirtualTargetStatus:
    """The status after the machine has got the disks it should have."""
    assert seen.profile is not None, "no disks without a class"
    return replace(
        seen.target.status,
        effective_revision=seen.profile.revision,
        disks=disks.names(seen.target),
    )


def _kept_ends(seen: TargetView) -> Restarts | None:
    """A target that was told to stop starts afresh."""
    old = seen.target.status.restarts
    return old if seen.target.spec.running else None


def _conditions(seen: TargetView, verdict: Verdict, now: datetime) -> tuple[Condition, ...]:
    generation = seen.target.metadata.generation
    missing = lasting_targets.disks_problem(seen)
    found = condition(
        seen.target.status.conditions,
        "Ready",
        status=verdict.ready,
        reason=verdict.reason or "Unknown",
        message=verdict.message[: lasting_targets.MESSAGE_LENGTH_MAX],
        generation=generation,
        now=now,
    )
    found = condition(
        found,
        "DisksReady",
        status=missing is None,
        reason=missing.reason if missing else "Ready",
        message=missing.message if missing else "",
        generation=generation,
        now=now,
    )
    return condition(
        found,
        "RestartRequired",
        status=bool(verdict.restart),
        reason=verdict.restart or "UpToDate",
        message=_restart_message(seen, verdict),
        generation=generation,
        now=now,
    )


def _restart_message(seen: TargetView, verdict: Verdict) -> str:
    if not verdict.restart:
        return ""
    if seen.problem is not None and verdict.restart == seen.problem.reason:
        return f"it runs with earlier settings: {seen.problem.message}"[
            : lasting_targets.MESSAGE_LENGTH_MAX
        ]
    why = f": {seen.refused}" if seen.refused else ""
    manual = seen.target.spec.update_approval is UpdateApproval.MANUAL
    if verdict.restart == lasting_targets.NOT_GROWN and not manual and not seen.lease:
        return f"it is restarted{why}"
    if manual and verdict.restart in ("ApprovalPending", lasting_targets.NOT_GROWN):
        text = f"a change needs a restart{why}; approve it with a new value of the annotation"
        return f"{text} {RESTART}"
    if seen.lease:
        return (
            f"it waits for the end of lease {seen.lease}{why}; to interrupt the lease, set the"
            f" annotation {DURING_LEASE} to its name"
        )
    return f"it is being restarted{why}"
