"""One lasting target: what is done about it next. Pure; ``target_status`` has its status.

The controller observes a target, its Exporter, its instance and its disks, calls ``decide``
and performs the step. A machine is stopped only when its Exporter is disabled and no lease
holds it, unless the lease is named in the annotation that permits it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.virtualdisk import VirtualDisk
from bullpen.api.kinds.virtualtarget import (
    DURING_LEASE,
    RESTART,
    RestartPolicy,
    Restarts,
    TargetPhase,
    UpdateApproval,
    VirtualTarget,
)
from bullpen.core.exporters import presence
from bullpen.core.pools.members import Backing, Stage
from bullpen.core.pools.pool_status import Problem
from bullpen.core.targets import disks, target_exporter
from bullpen.core.targets.instances import UNLISTED_RETRY, ExitReason, Instance, InstancePhase
from bullpen.core.targets.profiles import Profile
from bullpen.kit import times

FINALIZER = "virtualtarget.jumpstarter.dev/target"
"""Keeps a VirtualTarget until its Exporter and its machine are gone."""

STEADY_AFTER = timedelta(minutes=10)
"""A machine that ran this long has recovered: its earlier ends no longer count."""

BACK_OFF = timedelta(seconds=10)
BACK_OFF_MAX = timedelta(minutes=5)
"""Pause before the third start; it doubles up to the maximum. The second start is immediate."""

NOT_GROWN = "DiskNotGrown"
"""Why a restart is required: the running machine cannot see the new size of a disk."""

HELD_RETRY = timedelta(seconds=5)
"""How often a backend without capacity is asked again."""

REFUSED_RETRY = timedelta(minutes=1)
MESSAGE_LENGTH_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetView:
    """Everything a decision about one target looks at."""

    target: VirtualTarget
    profile: Profile | None = None
    """What it should run with; None without a class."""

    problem: Problem | None = None
    exporter: Exporter | None = None
    """The Exporter of its name, with any owner."""

    instance: Instance | None = None
    """The machine behind its Exporter."""

    strangers: tuple[Instance, ...] = ()
    """Machines of this name that belong to no present Exporter."""

    denied: Backing | None = None
    """Why a requested machine does not exist."""

    available: bool = True
    """Its provisioner runs in this process."""

    listed: bool = True
    """That provisioner has listed its machines."""

    startable: bool = True
    """Its Exporter has a token and an endpoint."""

    disks: Mapping[str, VirtualDisk | None] = field(default_factory=dict)
    """The disks it names."""

    copies: Mapping[str, str] = field(default_factory=dict)
    """Those of them that are being copied, and the disk that each is copied to."""

    tried: bool = False
    """The running machine was told to have these disks, at these sizes."""

    refused: str = ""
    """Why it cannot have them without a restart."""

    @property
    def lease(self) -> str:
        """The lease that holds it."""
        found = self.exporter.status.lease_ref if self.exporter is not None else None
        return found.name if found is not None else ""

    @property
    def owned(self) -> bool:
        return self.exporter is not None and target_exporter.owned_by(self.exporter, self.target)

    @property
    def ending(self) -> bool:
        return self.target.metadata.deletion_timestamp is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Protect:
    """Set the finalizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeExporter:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class EditExporter:
    """Give the Exporter the target's labels and annotations; let leases take it, or not."""

    enabled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveExporter:
    """Delete the Exporter as it was seen; its machine goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Remove the finalizer of the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop the machine, or clear away what an ended one left. A provisioner may keep it."""

    provisioner: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Remove a machine that this target does not own."""

    provisioner: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeDisks:
    """Let the running machine have the disks that the target names, at their sizes."""

    provisioner: str


Step = (
    Protect
    | MakeExporter
    | EditExporter
    | RemoveExporter
    | Release
    | Start
    | Stop
    | Remove
    | ChangeDisks
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to do next, and what to say before it is done."""

    phase: TargetPhase
    reason: str = ""
    message: str = ""
    step: Step | None = None
    ready: bool = False
    wake_at: datetime | None = None
    restart: str = ""
    """Why a restart is required, in CamelCase; empty if none is."""

    ended: Restarts | None = None
    """The record of ends, after this pass."""


def decide(seen: TargetView, *, now: datetime) -> Verdict:
    """The next step for one target, and its state."""
    if seen.ending:
        return _ending(seen)
    if FINALIZER not in seen.target.metadata.finalizers:
        return Verdict(phase=TargetPhase.PENDING, reason="Accepted", step=Protect())
    if seen.exporter is None and seen.problem is None and seen.profile is not None:
        return Verdict(phase=TargetPhase.PENDING, reason="Accepted", step=MakeExporter())
    if seen.exporter is None:
        return _blocked(seen)
    if not seen.owned:
        text = f"an Exporter {seen.exporter.metadata.name} exists that this target does not own"
        return Verdict(phase=TargetPhase.PENDING, reason="ExporterNameTaken", message=text)
    if seen.exporter.metadata.deletion_timestamp is not None:
        text = "its Exporter is being deleted; another one is created then"
        return Verdict(phase=TargetPhase.STOPPING, reason="ExporterDeleted", message=text)
    if not seen.available:
        return Verdict(
            phase=seen.target.status.phase, reason="NotHere", message="another process has it"
        )
    if not seen.listed:
        return Verdict(
            phase=seen.target.status.phase, reason="NotListed", wake_at=now + UNLISTED_RETRY
        )
    for stranger in seen.strangers:
        step = Remove(provisioner=stranger.provisioner, reason="its Exporter does not exist")
        return Verdict(phase=TargetPhase.STOPPING, reason="Replacing", step=step)
    return _machine(seen, now)


def _ending(seen: TargetView) -> Verdict:
    terminating = TargetPhase.TERMINATING
    exporter = seen.exporter
    if exporter is None or not seen.owned:
        return Verdict(phase=terminating, reason="Terminating", step=Release())
    if exporter.metadata.deletion_timestamp is not None:
        return Verdict(phase=terminating, reason="Terminating")
    if _disturbs(seen):
        text = f"lease {seen.lease} holds it; it is deleted when the lease ends"
        step = EditExporter(enabled=False) if exporter.spec.enabled else None
        return Verdict(phase=terminating, reason="Leased", message=text, step=step)
    return Verdict(phase=terminating, reason="Terminating", step=RemoveExporter())


def _disturbs(seen: TargetView) -> bool:
    """Whether stopping the machine would interrupt a lease without permission."""
    permitted = seen.target.metadata.annotations.get(DURING_LEASE, "")
    return bool(seen.lease) and permitted != seen.lease


def _blocked(seen: TargetView) -> Verdict:
    problem = seen.problem or Problem(reason="VirtualTargetClassNotFound", message="")
    return Verdict(phase=TargetPhase.PENDING, reason=problem.reason, message=problem.message)


def _machine(seen: TargetView, now: datetime) -> Verdict:
    if seen.instance is None or seen.instance.phase is InstancePhase.STOPPED:
        return _stopped(seen, now)
    if seen.instance.phase is InstancePhase.EXITED:
        return _exited(seen, seen.instance, now)
    return _running(seen, seen.instance)


def _stopped(seen: TargetView, now: datetime) -> Verdict:
    """No machine runs. Start one, or say why not."""
    status, ended = seen.target.status, seen.target.status.restarts
    if not seen.target.spec.running:
        return _resting(seen, Verdict(phase=TargetPhase.STOPPED, reason="Stopped"))
    if ended is not None and not _goes_on(seen.target, ended.reason):
        failed = ended.reason != ExitReason.COMPLETED
        phase = TargetPhase.FAILED if failed else TargetPhase.STOPPED
        text = f"{ended.message}; restartPolicy is {seen.target.spec.restart_policy}"
        if asked(seen) == status.restarted:
            return _resting(seen, Verdict(phase=phase, reason=ended.reason, message=text))
    pending = TargetPhase.PENDING
    if seen.problem is not None or seen.profile is None:
        return _blocked(seen)
    if ended is not None and times.is_within(now, ended.last_time, ended.retry_time):
        text = f"it ended {ended.count} times in a row: {ended.message}"
        return Verdict(
            phase=pending, reason="BackOff", message=text, wake_at=ended.retry_time, ended=ended
        )
    missing = disks_problem(seen)
    if missing is not None:
        return Verdict(phase=pending, reason=missing.reason, message=missing.message)
    growing = [name for name, disk in seen.disks.items() if disk and disks.grows_soon(disk)]
    if growing:
        text = f"VirtualDisk {growing[0]} grows before it starts"
        return Verdict(phase=pending, reason="DiskGrowing", message=text)
    if not seen.startable:
        return Verdict(phase=pending, reason="WaitingForToken", message="its exporter has no token")
    if seen.denied is not None:
        refused = seen.denied.stage is Stage.REFUSED
        return Verdict(
            phase=TargetPhase.FAILED if refused else pending,
            reason=seen.denied.reason or "Refused",
            message=seen.denied.detail,
            step=Start(),
            wake_at=now + (REFUSED_RETRY if refused else HELD_RETRY),
        )
    return Verdict(phase=TargetPhase.STARTING, reason="Starting", step=Start())


def asked(seen: TargetView) -> str:
    """The restart that was asked for last, whether or not it was carried out."""
    return seen.target.metadata.annotations.get(RESTART, "")


def _goes_on(target: VirtualTarget, reason: str) -> bool:
    """Whether a machine that ended for this reason is started again."""
    policy = target.spec.restart_policy
    if policy is RestartPolicy.ALWAYS or reason == ExitReason.LOST:
        return True
    return policy is RestartPolicy.ON_FAILURE and reason != ExitReason.COMPLETED


def _resting(seen: TargetView, verdict: Verdict) -> Verdict:
    """A target without a machine takes no leases."""
    return replace(verdict, step=_edit(seen, enabled=False))


def _edit(seen: TargetView, *, enabled: bool) -> EditExporter | None:
    """The edit of the Exporter that is due, if any."""
    exporter, target = seen.exporter, seen.target
    assert exporter is not None
    meta = exporter.metadata
    same = (
        exporter.spec.enabled == enabled
        and meta.labels == target_exporter.labels_of(target, meta.labels)
        and meta.annotations == target_exporter.annotations_of(target, meta.annotations)
    )
    return None if same else EditExporter(enabled=enabled)


def _exited(seen: TargetView, instance: Instance, now: datetime) -> Verdict:
    """Record the end, then remove what is left of the machine."""
    ended = _record(seen, instance, now)
    step = Stop(provisioner=instance.provisioner, reason=f"it ended: {instance.detail}")
    phase = TargetPhase.PENDING if _goes_on(seen.target, str(instance.reason)) else (
        TargetPhase.FAILED
    )  # fmt: skip
    return Verdict(
        phase=phase, reason=str(instance.reason), message=instance.detail, step=step, ended=ended
    )


def _record(seen: TargetView, instance: Instance, now: datetime) -> Restarts | None:
    status, old = seen.target.status, seen.target.status.restarts
    started = status.started_at
    if old is not None and old.start == status.starts:
        return old  # this end is on record
    if instance.reason is ExitReason.LOST:
        return None  # its host stopped; that says nothing about the machine
    steady = started is not None and now - started >= STEADY_AFTER
    count = 1 if old is None or steady else old.count + 1
    pause = min(BACK_OFF * 2 ** min(count - 2, 10), BACK_OFF_MAX) if count > 1 else timedelta(0)
    return Restarts(
        count=count,
        total=(old.total if old else 0) + 1,
        start=status.starts,
        last_time=now,
        retry_time=now + pause,
        reason=str(instance.reason),
        message=instance.detail[:MESSAGE_LENGTH_MAX],
    )


def _running(seen: TargetView, instance: Instance) -> Verdict:
    status, target = seen.target.status, seen.target
    ended = status.restarts
    if not target.spec.running:
        return _stopping(seen, instance, "Stopped", "spec.running is false")
    if instance.incomplete and seen.startable and seen.profile is not None and not seen.problem:
        # Its exporter has not been placed, and its provisioner has forgotten what it needs for it.
        text = "its exporter is placed"
        return Verdict(phase=TargetPhase.STARTING, reason="Starting", message=text, step=Start())
    wanted = asked(seen)
    if wanted and wanted != status.restarted:
        return _stopping(seen, instance, "RestartRequested", f"restart {wanted}")
    stale = seen.profile is not None and seen.profile.revision != status.effective_revision
    if _disks_change(seen, instance, stale=stale):
        return replace(_changing_disks(seen, instance), ended=ended)
    if stale and seen.problem is None and target.spec.update_approval is UpdateApproval.AUTOMATIC:
        return _stopping(seen, instance, "SettingsChanged", "its settings changed")
    too_small = [name for name, disk in seen.disks.items() if disk and disks.grows_soon(disk)]
    if seen.refused and too_small and not stale and _restarts_itself(target):
        return _stopping(seen, instance, NOT_GROWN, f"VirtualDisk {too_small[0]} grows")
    not_grown = NOT_GROWN if seen.refused and too_small else ""
    restart = "ApprovalPending" if stale else not_grown
    if seen.problem is not None:
        restart = seen.problem.reason  # what was written cannot take effect
    state = _serving(seen, instance)
    return replace(state, step=_offer(seen, instance), restart=restart, ended=ended)


def _restarts_itself(target: VirtualTarget) -> bool:
    """Whether it restarts by itself for a disk; the pool of a member decides how many do so."""
    automatic = target.spec.update_approval is UpdateApproval.AUTOMATIC
    return automatic and not any(owner.controller for owner in target.metadata.owner_references)


def _disks_change(seen: TargetView, instance: Instance, *, stale: bool) -> bool:
    """Whether all that is to be changed are disks, and the machine can get them as it runs."""
    made = seen.profile
    if made is None or seen.problem or seen.refused or instance.phase is not InstancePhase.RUNNING:
        return False
    if stale:
        return made.start_revision == seen.target.status.start_revision
    found = (disk for disk in seen.disks.values() if disk is not None)
    return not seen.tried and any(map(disks.grows, found))


def _changing_disks(seen: TargetView, instance: Instance) -> Verdict:
    """Change the disks as soon as they are there; none is taken from a lease."""
    state = _serving(seen, instance)
    edit = _offer(seen, instance)
    leaving = [name for name in seen.target.status.disks if name not in seen.disks]
    if leaving and _disturbs(seen):
        text = f"VirtualDisk {leaving[0]} is detached when lease {seen.lease} ends"
        return replace(state, message=text, step=edit)
    change = None if disks_problem(seen) else ChangeDisks(provisioner=instance.provisioner)
    return replace(state, step=edit or change)


def disks_wanted(made: Profile, target: VirtualTarget) -> str:
    """Identifies one change of the disks of one run of the machine."""
    sizes = ",".join(str(disk.size_bytes) for disk in made.disks)
    return f"{target.status.starts}/{made.revision}/{sizes}"


def _offer(seen: TargetView, instance: Instance) -> EditExporter | None:
    """Let leases take it, unless its machine is paused."""
    return _edit(seen, enabled=not instance.paused)


def _serving(seen: TargetView, instance: Instance) -> Verdict:
    exporter = seen.exporter
    assert exporter is not None
    if instance.phase is InstancePhase.BOOTING:
        reason = instance.held or "Starting"
        return Verdict(phase=TargetPhase.STARTING, reason=reason, message=instance.detail)
    if instance.paused:
        text = f"its machine is paused and goes on by itself: {instance.paused}"
        return Verdict(phase=TargetPhase.RUNNING, reason=disks.NO_SPACE, message=text)
    if presence.online(exporter) and presence.registered(exporter):
        return Verdict(phase=TargetPhase.RUNNING, reason="Running", ready=True)
    text = "its exporter is not connected"
    return Verdict(phase=TargetPhase.RUNNING, reason="Offline", message=text)


def _stopping(seen: TargetView, instance: Instance, reason: str, why: str) -> Verdict:
    """Stop the machine once no lease holds it and none can take it."""
    restart = reason if seen.target.spec.running else ""
    exporter = seen.exporter
    assert exporter is not None
    state = _serving(seen, instance)
    if _disturbs(seen):
        text = f"{why}; it waits for the end of lease {seen.lease}"
        shown = replace(state, message=text) if not state.ready else state
        return replace(shown, restart=restart, message=text, step=_edit(seen, enabled=False))
    if exporter.spec.enabled:
        return replace(state, restart=restart, step=EditExporter(enabled=False))
    return Verdict(
        phase=TargetPhase.STOPPING,
        reason=reason,
        message=why,
        step=Stop(provisioner=instance.provisioner, reason=why),
        restart=restart,
    )


def disks_problem(seen: TargetView) -> Problem | None:
    """Why the machine cannot have its disks; None if it can."""
    name = seen.target.metadata.name
    for disk, found in seen.disks.items():
        if found is None:
            return Problem(reason="DiskNotFound", message=f"VirtualDisk {disk} does not exist")
        if not disks.usable(found):
            text = f"VirtualDisk {disk} is {found.status.phase}"
            return Problem(reason="DiskNotReady", message=text)
        if disk in seen.copies:
            text = f"VirtualDisk {disk} is being copied to {seen.copies[disk]}"
            return Problem(reason="DiskBeingCopied", message=text)
        if found.status.attached_to != name:
            other = found.status.attached_to
            text = f"VirtualDisk {disk} is attached to {other}" if other else f"{disk} is free"
            return Problem(reason="DiskInUse" if other else "DiskNotAttached", message=text)
    return None
