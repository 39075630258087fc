"""The instance behind a pool member: its state, and what is done about it next. Pure.

The controller observes a member and the instances of its name, calls ``next_steps`` and
performs the steps in order. Nothing here calls a backend or reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, StrEnum, auto

from bullpen.api.kinds.exporter import Exporter, ExporterStatusValue
from bullpen.core.conditions import get
from bullpen.core.exporters import presence
from bullpen.core.pools.members import RESET_FAILED, SINGLE_USE, Backing, Stage
from bullpen.core.targets.profiles import FINALIZER, PROVISIONER

UNLISTED_RETRY = timedelta(seconds=1)
"""Pause before a member is looked at again whose provisioner has not listed its instances."""

CAPACITY_RETRY = timedelta(seconds=5)
"""How often a backend without capacity is asked again, if it reports nothing before."""

UNLISTED_MAX = timedelta(seconds=30)
"""How long a listing that lacks an instance is doubted while a lease holds its exporter.

Listings of cloud providers are eventually consistent. That its exporter is offline proves little
besides: a service that waits for its disk finds exporters offline that are not.
"""

REMOVAL_MAX = timedelta(minutes=10)
"""A deleted Exporter waits no longer than this for a backend that does not answer."""

SERVING = frozenset(
    {
        ExporterStatusValue.BEFORE_LEASE_HOOK,
        ExporterStatusValue.LEASE_READY,
        ExporterStatusValue.AFTER_LEASE_HOOK,
    }
)
"""Statuses of an exporter that knows of its lease. In any other it would exit if retired."""


class InstancePhase(Enum):
    BOOTING = auto()
    """Accepted. Files are being fetched, or its exporter has not registered yet."""

    RUNNING = auto()
    """Its exporter has registered."""

    EXITED = auto()
    """No process of it runs. It stays listed, with its log, until it is removed."""

    STOPPED = auto()
    """Of a lasting target: no process of it runs, and its machine is kept until it is started."""


class ExitReason(StrEnum):
    """Why an instance has exited; stable, for conditions and metrics."""

    COMPLETED = "Completed"
    """It served its lease, or was retired: a regular end."""

    START_FAILED = "StartFailed"
    """It never registered: invalid settings, a missing driver or file, a refused token."""

    CRASHED = "Crashed"
    """It had registered, then failed or was killed."""

    RESET_FAILED = RESET_FAILED
    """It could not be verified to be clean after a lease, so it is not offered again."""

    LOST = "Lost"
    """The process that ran it ended; the cause is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """The running machine behind an Exporter, as last seen."""

    key: tuple[str, str]
    """Namespace and name of the Exporter."""

    owner_uid: str
    """Uid of the Exporter. The same name with another uid is another instance."""

    provisioner: str
    phase: InstancePhase
    reason: ExitReason | None = None
    """Set if and only if it has exited."""

    held: str = ""
    """Accepted, but there is no capacity yet: why, in CamelCase. Its boot has not begun."""

    incomplete: bool = False
    """Accepted, but its provisioner was restarted and needs the spec again to go on."""

    detail: str = ""
    """For users: what it is doing, or what went wrong."""

    paused: str = ""
    """Its machine is paused because nothing can be written: why. It goes on by itself."""

    notice: str = ""
    """Why its provider is about to end it; empty if it is not known to be."""

    warning: str = ""
    """For operators: in which way it runs worse than it could, such as without KVM."""

    host: str = ""
    """The host that runs it, if known."""

    provider_id: str = ""
    """The backend's own name for it, if it has one."""

    addresses: tuple[str, ...] = ()
    """Network addresses, as far as the backend knows them."""

    def __post_init__(self) -> None:
        assert (self.reason is None) == (self.phase is not InstancePhase.EXITED)
        assert not self.held or self.phase is InstancePhase.BOOTING

    @property
    def up(self) -> bool:
        return self.phase in (InstancePhase.BOOTING, InstancePhase.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """A member that this process manages, as far as its instance is concerned."""

    uid: str
    provisioner: str
    deletion_began: datetime | None = None
    finalizer: bool = True
    """Its Exporter has our finalizer, and so stays until it is released."""

    enabled: bool = True
    startable: bool = True
    """Its profile is valid and current, and its exporter has a token and an endpoint."""

    registered_before: bool = False
    """Its exporter has registered once, so its instance existed."""

    in_last_lease: bool = False
    """It is single-use and serves a lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is known of the instances with the name of a member."""

    instances: tuple[Instance, ...] = ()
    """Of every provisioner of this process and every owner, as last listed."""

    available: bool = True
    """The provisioner of the member runs in this process."""

    listed: bool = True
    """That provisioner has listed its instances."""

    refused: bool = False
    """The backend refused to create the instance as specified."""

    retired: bool = False
    """The instance was already told to exit after its lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Remove the instance with the member's name at this provisioner."""

    provisioner: str
    owner_uid: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Let the provisioner start the instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """Let the instance exit after its lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw:
    """Tell the lessee that the instance is about to end, and let no other lease take it."""

    notice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Remove the finalizer of the Exporter, so that it is deleted."""

    warning: str = ""
    """Why the instance may still exist; empty if it is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Look again at this time, if nothing changes before."""

    until: datetime
    reason: str


Step = Delete | Create | Retire | Withdraw | Release | Wait


def desired(member: Exporter, *, startable: bool) -> Desired:
    """``startable``: its profile is valid and of its revision, and its token is known."""
    meta = member.metadata
    return Desired(
        uid=meta.uid,
        provisioner=meta.annotations.get(PROVISIONER, ""),
        deletion_began=meta.deletion_timestamp,
        finalizer=FINALIZER in meta.finalizers,
        enabled=member.spec.enabled,
        startable=startable and bool(member.status.endpoint),
        registered_before=has_registered(member),
        in_last_lease=in_last_lease(member),
    )


def has_registered(member: Exporter) -> bool:
    return get(member.status.conditions, "Registered") is not None


def is_leased(member: Exporter) -> bool:
    return member.status.lease_ref is not None


def in_last_lease(member: Exporter) -> bool:
    """Whether it is single-use and serves a lease, so that it may be told to exit after it."""
    serving = member.status.exporter_status in SERVING
    in_use = is_leased(member) and presence.online(member)
    return SINGLE_USE in member.metadata.annotations and in_use and serving


def next_steps(wanted: Desired | None, seen: Observed, *, now: datetime) -> tuple[Step, ...]:
    """What to do about the instances of one name, in order. ``wanted`` is None for no member.

    If a step fails, the steps after it are not performed; ``after_failed_removal`` is the one
    exception.
    """
    uid = wanted.uid if wanted is not None else ""
    foreign = tuple(
        Delete(
            provisioner=found.provisioner,
            owner_uid=found.owner_uid,
            reason="its Exporter does not exist",
        )
        for found in seen.instances
        if found.owner_uid != uid
    )
    if wanted is None:
        return foreign
    if wanted.deletion_began is not None:
        return (*foreign, *_removal(wanted, seen))
    return (*foreign, *_operation(wanted, seen, now=now))


def _removal(wanted: Desired, seen: Observed) -> tuple[Step, ...]:
    """An instance is removed even if it is not listed: the list may be older than the instance."""
    if not wanted.finalizer:
        return ()
    if not seen.available:
        return (Release(warning=f"provisioner {wanted.provisioner} is not available here"),)
    reason = "its Exporter is deleted"
    return (
        Delete(provisioner=wanted.provisioner, owner_uid=wanted.uid, reason=reason),
        Release(),
    )


def _operation(wanted: Desired, seen: Observed, *, now: datetime) -> tuple[Step, ...]:
    if not seen.available:
        return ()
    if not seen.listed:
        reason = f"{wanted.provisioner} has not listed its instances"
        return (Wait(until=now + UNLISTED_RETRY, reason=reason),)
    own = next((found for found in seen.instances if found.owner_uid == wanted.uid), None)
    if own is None:
        return (Create(),) if _may_start(wanted, seen) else ()
    if own.incomplete and _may_start(wanted, seen):
        return (Create(),)
    if own.up and own.notice and wanted.enabled:
        return (Withdraw(notice=own.notice),)
    retires = own.up and wanted.in_last_lease and not seen.retired
    return (Retire(),) if retires else ()


def _may_start(wanted: Desired, seen: Observed) -> bool:
    """An instance that existed once is not created again: its member is replaced."""
    return wanted.startable and wanted.enabled and not wanted.registered_before and not seen.refused


def after_failed_removal(wanted: Desired, problem: str, *, now: datetime) -> Release | None:
    """The step after a backend did not confirm a removal; None to try the removal again."""
    assert wanted.deletion_began is not None
    if now - wanted.deletion_began < REMOVAL_MAX:
        return None
    return Release(warning=problem)


def capacity_retry(*, now: datetime, chance: float) -> Wait:
    """When to ask a backend again that could not create an instance; ``chance`` is below 1."""
    return Wait(until=now + CAPACITY_RETRY * (0.5 + chance), reason="the backend has no capacity")


def backing(
    own: Instance | None,
    denied: Backing | None,
    *,
    since: datetime,
    waits_for: str | None,
    managed_by: str | None,
    registered_before: bool,
    doubted: bool = False,
) -> Backing:
    """The instance behind a member, as the sizing of pools sees it.

    ``denied``: why a requested instance does not exist. ``waits_for``: its provisioner, if that
    has not listed its instances. ``managed_by``: its provisioner, if another process has it.
    ``doubted``: it left the listing less than ``UNLISTED_MAX`` ago, and a lease holds it.
    """
    if own is not None and own.reason is not None:
        return Backing(stage=Stage.EXITED, reason=own.reason.value, detail=own.detail, since=since)
    if own is not None and own.held:
        return Backing(stage=Stage.HELD, reason=own.held, detail=own.detail, since=since)
    if own is not None:
        return Backing(stage=Stage.UP, detail=own.detail, since=since)
    if denied is not None:
        return denied
    if managed_by is not None:
        return Backing(stage=Stage.UP, detail=f"managed by {managed_by}", since=since)
    if waits_for is not None:
        stage = Stage.UP if registered_before else Stage.ABSENT
        return Backing(stage=stage, detail=f"{waits_for} has not answered yet", since=since)
    if registered_before and doubted:
        text = "its provisioner does not list it, but a lease holds it"
        return Backing(stage=Stage.UP, detail=text, since=since)
    if registered_before:
        text = "its instance is gone"
        return Backing(stage=Stage.EXITED, reason=ExitReason.LOST, detail=text, since=since)
    return Backing(since=since)
