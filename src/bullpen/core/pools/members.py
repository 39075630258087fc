"""What a member of a pool is doing: its Exporter and the instance behind it, as one phase.

Only observed facts count. Time is an input, and ``Member.due`` says when time alone will
change the phase, so that it need not be evaluated before.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum, auto

from bullpen.api.kinds.exporter import Exporter
from bullpen.api.meta import Condition, ConditionStatus
from bullpen.core.conditions import get
from bullpen.core.exporters import presence
from bullpen.kit import times

SINGLE_USE = "exporterset.jumpstarter.dev/single-use"
"""Annotation of an exporter that serves one lease in its life."""

REVISION = "exporterset.jumpstarter.dev/revision"
"""Label that says which template and class a member was created from."""


RESET_FAILED = "ResetFailed"
"""Cause of a member that could not be verified to be clean after a lease."""


class Stage(StrEnum):
    """How far the start of the instance behind a member is."""

    ABSENT = auto()
    """This process has not asked the backend for it yet."""

    HELD = auto()
    """Requested; the backend has no capacity for it, or does not answer."""

    REFUSED = auto()
    """The backend refuses to create it as specified."""

    UP = auto()
    """The instance is booting or running."""

    EXITED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backing:
    """The instance behind a member, as last seen."""

    stage: Stage = Stage.ABSENT
    reason: str = ""
    """Why it is held, refused or exited, in CamelCase."""

    detail: str = ""
    since: datetime
    """When its boot began, as far as known."""


class Phase(StrEnum):
    STARTING = auto()
    """Not ready yet."""

    HELD = auto()
    """Waits for capacity at the backend."""

    READY = auto()
    """Registered and online, leased or not."""

    OFFLINE = auto()
    """Was ready and lost its connection; it may come back."""

    FINISHING = auto()
    """Its one lease has ended and it is winding down."""

    SPENT = auto()
    """It served its one lease and can be deleted."""

    CRASHED = auto()
    """Was ready and will not come back."""

    FAILED = auto()
    """Never became ready, or not for long enough to be useful."""

    DRAINING = auto()
    """Disabled: no new lease takes it."""

    ENDING = auto()
    """Deleted, but its instance still has to be removed."""


SUPPLY = frozenset({Phase.STARTING, Phase.HELD, Phase.READY, Phase.OFFLINE})
"""Members that serve a lease or are expected to."""

STARTING = frozenset({Phase.STARTING, Phase.HELD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a member may take before it is given up."""

    boot_max: timedelta = timedelta(minutes=3)
    offline_max: timedelta = timedelta(seconds=30)
    """Longer than a restart of the service, shorter than users are willing to wait."""

    finish_max: timedelta = timedelta(seconds=150)
    """For the after-lease hook, whose own limit is 120 s."""

    stable_after: timedelta = timedelta(seconds=10)
    """A member that exits sooner than this after it became ready has failed to start."""


PATIENCE = Patience()


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    name: str
    uid: str = ""
    phase: Phase
    leaving: bool = False
    """Removed by name: it goes, at the latest when its lease ends."""

    leased: bool = False
    idle: bool = False
    """The member is ready, has no lease and reports that it is available."""

    current: bool = True
    """Created from the current template, class and token."""

    created: datetime
    ready_at: datetime | None = None
    since: datetime
    """When its boot began."""

    due: datetime | None = None
    """When it will change its phase unless something happens before."""

    stage: Stage = Stage.UP
    cause: str = ""
    """Why it failed, crashed or is held, in CamelCase."""

    detail: str = ""
    reset_at: datetime | None = None
    """When its last lease ended, if it is available again after that."""

    @property
    def blames_template(self) -> bool:
        """Whether it failed in a way in which the next member will fail too."""
        return self.phase is Phase.FAILED or self.cause == RESET_FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """Every input of a phase except the time."""

    exporter: Exporter
    backing: Backing
    leased: bool
    """A lease that has not ended holds it."""

    unleased_since: datetime
    """When its lease ended, as far as known; relevant only after a lease."""

    reset_at: datetime | None = None
    """When its last lease ended, if this process saw that."""

    offline_since: datetime | None = None
    """When it was no longer ready, if this process saw that."""

    leaving: bool = False
    """It was removed by name."""

    stale: bool = False
    """The instance runs with a token that is no longer valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    phase: Phase
    due: datetime | None = None
    cause: str = ""
    detail: str = ""


def spent(exporter: Exporter) -> bool:
    """Whether it has already been assigned the one lease it may serve."""
    return SINGLE_USE in exporter.metadata.annotations and exporter.status.lease_epoch > 0


def member(
    seen: Sighting, *, revision: str, now: datetime, patience: Patience = PATIENCE
) -> Member:
    """The exporter as a member of its pool, whose current revision is ``revision``."""
    verdict = _verdict(seen, now, patience)
    meta, backing = seen.exporter.metadata, seen.backing
    assert meta.creation_timestamp is not None
    free = verdict.phase is Phase.READY and not seen.leased
    idle = free and presence.idle(seen.exporter)
    return Member(
        name=meta.name,
        uid=meta.uid,
        phase=verdict.phase,
        leaving=seen.leaving,
        leased=seen.leased,
        idle=idle,
        current=meta.labels.get(REVISION) == revision and not seen.stale,
        created=meta.creation_timestamp,
        ready_at=ready_at(seen.exporter),
        since=backing.since,
        due=verdict.due,
        stage=backing.stage,
        cause=verdict.cause,
        detail=verdict.detail or backing.detail,
        reset_at=seen.reset_at if idle else None,
    )


def _verdict(seen: Sighting, now: datetime, patience: Patience) -> _Verdict:
    exporter, backing = seen.exporter, seen.backing
    if exporter.metadata.deletion_timestamp is not None:
        return _Verdict(phase=Phase.ENDING)
    over = spent(exporter) and not seen.leased
    if backing.stage is Stage.EXITED:
        return _Verdict(phase=Phase.SPENT) if over else _exited(seen, now, patience)
    if not exporter.spec.enabled:
        return _Verdict(phase=Phase.DRAINING)
    if backing.stage is Stage.REFUSED:
        return _Verdict(phase=Phase.FAILED, cause=backing.reason)
    if over:
        return _winding_down(seen, now, patience)
    if presence.online(exporter) and presence.registered(exporter):
        return _online(seen)
    if was_ready(exporter):
        return _offline(seen, now, patience)
    return _booting(backing, now, patience)


def _exited(seen: Sighting, now: datetime, patience: Patience) -> _Verdict:
    """No process of the member runs. A lease on it no longer has anything to use."""
    unused = seen.exporter.status.lease_epoch == 0
    # An instance lost together with its host process says nothing about its template or class.
    own_fault = seen.backing.reason != "Lost" and unused and _is_young(seen, now, patience)
    phase = Phase.FAILED if own_fault else Phase.CRASHED
    return _Verdict(phase=phase, cause=seen.backing.reason or "Exited")


def _is_young(seen: Sighting, now: datetime, patience: Patience) -> bool:
    """Whether it was never ready, or too briefly to be useful."""
    if not was_ready(seen.exporter):
        return True
    since = ready_at(seen.exporter) or seen.backing.since
    return times.is_within(now, since, times.shifted(since, patience.stable_after))


def _winding_down(seen: Sighting, now: datetime, patience: Patience) -> _Verdict:
    due = times.shifted(seen.unleased_since, patience.finish_max)
    busy = presence.online(seen.exporter) and not presence.idle(seen.exporter)
    if busy and due > now:
        return _Verdict(phase=Phase.FINISHING, due=due)
    return _Verdict(phase=Phase.SPENT)


def _online(seen: Sighting) -> _Verdict:
    if presence.stuck(seen.exporter) and not seen.leased:
        text = "it did not become available again after its lease"
        return _Verdict(phase=Phase.CRASHED, cause="Stuck", detail=text)
    return _Verdict(phase=Phase.READY)


def _offline(seen: Sighting, now: datetime, patience: Patience) -> _Verdict:
    """The member may come back; a lease on it waits without a limit."""
    if seen.leased:
        return _Verdict(phase=Phase.OFFLINE)
    since = seen.offline_since or _not_ready_since(seen.exporter)
    due = times.shifted(since, patience.offline_max)
    if due > now:
        return _Verdict(phase=Phase.OFFLINE, due=due)
    text = f"offline since {since:%H:%M:%S} UTC"
    return _Verdict(phase=Phase.CRASHED, cause="Offline", detail=text)


def _not_ready_since(exporter: Exporter) -> datetime:
    """Since when a member that was ready is offline or not registered, as its conditions say."""
    found = (
        get(exporter.status.conditions, "Online"),
        get(exporter.status.conditions, "Registered"),
    )
    return max(c.last_transition_time for c in found if c is not None and not _is_true(c))


def _booting(backing: Backing, now: datetime, patience: Patience) -> _Verdict:
    if backing.stage is Stage.HELD:
        return _Verdict(phase=Phase.HELD, cause=backing.reason)
    due = times.shifted(backing.since, patience.boot_max)
    if due > now:
        return _Verdict(phase=Phase.STARTING, due=due)
    text = f"not registered within {patience.boot_max.total_seconds():.0f} s"
    detail = f"{text}; {backing.detail}" if backing.detail else text
    return _Verdict(phase=Phase.FAILED, cause="BootTimeout", detail=detail)


def ready_at(exporter: Exporter) -> datetime | None:
    """When it registered, if it is registered now."""
    found = get(exporter.status.conditions, "Registered")
    return found.last_transition_time if found is not None and _is_true(found) else None


def was_ready(exporter: Exporter) -> bool:
    """Whether it has ever registered and connected."""
    conditions = exporter.status.conditions
    return get(conditions, "Registered") is not None and get(conditions, "Online") is not None


def _is_true(condition: Condition) -> bool:
    return condition.status is ConditionStatus.TRUE
