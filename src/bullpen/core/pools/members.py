"""What a member of a pool is doing: its Exporter and the instance behind it, as one phase.

Only what is observed counts. Time is an input, and ``Member.due`` says when time alone
will change the answer, so that nobody has to look before.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum, auto

from bullpen.api.exporter import Exporter
from bullpen.api.meta import Condition, ConditionStatus
from bullpen.core.conditions import get
from bullpen.core.exporters import presence
from bullpen.kit import times

SINGLE_USE = "exporterset.jumpstarter.dev/single-use"
"""Annotation of an exporter that serves one lease in its life."""

REVISION = "exporterset.jumpstarter.dev/revision"
"""Label that says which template and class a member was made from."""


class Stage(StrEnum):
    """How far the instance behind a member is."""

    ABSENT = auto()
    """Nobody has asked the backend for it yet."""

    HELD = auto()
    """Asked for; the backend has no room for it, or does not answer."""

    REFUSED = auto()
    """The backend will not make it the way it is described."""

    UP = auto()
    """It boots or runs."""

    EXITED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backing:
    """The instance behind a member, as last seen."""

    stage: Stage = Stage.ABSENT
    reason: str = ""
    """Why it is held, was refused or exited, in CamelCase."""

    detail: str = ""
    since: datetime
    """When its boot began, as far as anybody knows."""


class Phase(StrEnum):
    STARTING = auto()
    """On its way to be ready."""

    HELD = auto()
    """Waits for room at the backend."""

    READY = auto()
    """Registered and online, leased or not."""

    OFFLINE = auto()
    """Was ready and lost its connection; it may come back."""

    FINISHING = auto()
    """Its one lease is over and it winds down."""

    SPENT = auto()
    """It served its one lease and can go."""

    CRASHED = auto()
    """Was ready and will not come back."""

    FAILED = auto()
    """Never became ready, or did not stay so long enough to be of use."""

    DRAINING = auto()
    """Disabled: no new lease takes it."""

    ENDING = auto()
    """Deleted, but its instance still has to go."""


SUPPLY = frozenset({Phase.STARTING, Phase.HELD, Phase.READY, Phase.OFFLINE})
"""Members that serve a lease or can be expected to."""

STARTING = frozenset({Phase.STARTING, Phase.HELD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a member may take before it is given up."""

    boot_max: timedelta = timedelta(minutes=3)
    offline_max: timedelta = timedelta(seconds=30)
    """Longer than a restart of the service, shorter than people's patience."""

    finish_max: timedelta = timedelta(seconds=150)
    """For the after-lease hook, whose own limit is 120 s."""

    stable_after: timedelta = timedelta(seconds=10)
    """A member that ends sooner than this after it became ready has failed to start."""


PATIENCE = Patience()


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    name: str
    phase: Phase
    leased: bool = False
    idle: bool = False
    """It is ready, has no lease and says that it can take one."""

    current: bool = True
    """Made from the template, the class and the token as they are now."""

    created: datetime
    ready_at: datetime | None = None
    since: datetime
    """When its boot began."""

    due: datetime | None = None
    """When it will be in another phase unless something happens before."""

    stage: Stage = Stage.UP
    cause: str = ""
    """Why it failed, crashed or is held, in CamelCase."""

    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """Everything a phase is decided on, but the time."""

    exporter: Exporter
    backing: Backing
    leased: bool
    """A lease that has not ended holds it."""

    unleased_since: datetime
    """When its lease ended, as far as anybody knows; matters only after a lease."""

    stale: bool = False
    """It runs with a token that is no longer valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    phase: Phase
    due: datetime | None = None
    cause: str = ""
    detail: str = ""


def spent(exporter: Exporter) -> bool:
    """Whether it has already been given the one lease of its life."""
    return SINGLE_USE in exporter.metadata.annotations and exporter.status.lease_epoch > 0


def member(
    seen: Sighting, *, revision: str, now: datetime, patience: Patience = PATIENCE
) -> Member:
    """The exporter as a member of its pool, whose present revision is ``revision``."""
    verdict = _verdict(seen, now, patience)
    meta, backing = seen.exporter.metadata, seen.backing
    assert meta.creation_timestamp is not None
    free = verdict.phase is Phase.READY and not seen.leased
    return Member(
        name=meta.name,
        phase=verdict.phase,
        leased=seen.leased,
        idle=free and presence.idle(seen.exporter),
        current=meta.labels.get(REVISION) == revision and not seen.stale,
        created=meta.creation_timestamp,
        ready_at=ready_at(seen.exporter),
        since=backing.since,
        due=verdict.due,
        stage=backing.stage,
        cause=verdict.cause,
        detail=verdict.detail or backing.detail,
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
    if _was_ready(exporter):
        return _offline(seen, now, patience)
    return _booting(backing, now, patience)


def _exited(seen: Sighting, now: datetime, patience: Patience) -> _Verdict:
    """Nothing of it runs. A lease on it has nothing left to hold."""
    unused = seen.exporter.status.lease_epoch == 0
    # What was lost with whoever ran it says nothing about what it was made from.
    own_fault = seen.backing.reason != "Lost" and unused and _is_young(seen, now, patience)
    phase = Phase.FAILED if own_fault else Phase.CRASHED
    return _Verdict(phase=phase, cause=seen.backing.reason or "Exited")


def _is_young(seen: Sighting, now: datetime, patience: Patience) -> bool:
    """Whether it was never ready, or too short to be of use to anybody."""
    if not _was_ready(seen.exporter):
        return True
    return now - (ready_at(seen.exporter) or seen.backing.since) < patience.stable_after


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
    """It may come back; a lease waits for it as long as it likes."""
    if seen.leased:
        return _Verdict(phase=Phase.OFFLINE)
    conditions = seen.exporter.status.conditions
    found = (get(conditions, "Online"), get(conditions, "Registered"))
    since = max(c.last_transition_time for c in found if c is not None and not _is_true(c))
    due = times.shifted(since, patience.offline_max)
    if due > now:
        return _Verdict(phase=Phase.OFFLINE, due=due)
    text = f"offline since {since:%H:%M:%S} UTC"
    return _Verdict(phase=Phase.CRASHED, cause="Offline", detail=text)


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


def _was_ready(exporter: Exporter) -> bool:
    """Whether it has registered and connected at some time."""
    conditions = exporter.status.conditions
    return get(conditions, "Registered") is not None and get(conditions, "Online") is not None


def _is_true(condition: Condition) -> bool:
    return condition.status is ConditionStatus.TRUE
