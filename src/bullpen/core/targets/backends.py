"""Backends whose API makes machines: what their listings mean, and what may be created. Pure.

A backend is an account, project or set of hosts of a provider. It may be silent, slow to show
what it created, or hold machines that no object stands for. A machine costs money, so whatever
is not known counts as existing until a complete listing shows that it does not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, auto

from bullpen.core.targets.instances import ExitReason, Instance, InstancePhase

Key = tuple[str, str]

LOST_AFTER = timedelta(minutes=10)
"""A machine without a running exporter counts as lost when its backend is silent for so long."""

SETTLE_MAX = timedelta(seconds=60)
"""How long the listings of a backend may lack a machine that exists, such as a new one."""


EXPIRY = timedelta(hours=2)
"""How far ahead a machine's own end is set. It ends then if this service is gone for good."""

RENEW_BEFORE = timedelta(hours=1)
"""How long before its end a machine is renewed: an hour of a silent provider ends nothing."""


GRANT_RENEWED = timedelta(minutes=30)
"""How often the exporter of a machine gets newer files from the provider."""

GRANT_HOLDS = timedelta(hours=2)
"""How long such files are good for: longer than a provider that is silent for a while."""


SETTINGS_LENGTH = 16


class MachineState(Enum):
    STARTING = auto()
    RUNNING = auto()
    """It has an address, so an exporter can reach it."""

    STOPPING = auto()
    STOPPED = auto()
    """Of a lasting target: it does not run, and is kept with its disks until it is started."""

    ENDING = auto()
    FAILED = auto()
    """Ended by the provider, or never started: it is not used any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine of a backend that was created for an Exporter, as last listed."""

    id: str
    key: Key
    """Namespace and name of the Exporter."""

    owner_uid: str
    state: MachineState
    created: datetime
    """When it was created: the same whenever it is listed."""

    started: datetime | None = None
    """When it was last started, if that may have been after its creation."""

    address: str = ""
    hourly_cost: float = 0.0
    """What it costs now: of a stopped machine nothing, because the cost of its disks is unknown."""

    expires: datetime | None = None
    """When it ends by itself, unless it is renewed; None if it never does."""

    lasting: bool = False
    """Its target keeps it: it is stopped, and deleted only with its Exporter."""

    settings: str = ""
    """Identifies the parameters that it was created with; empty if the provider does not know."""

    switchable: bool = False
    """Its exporter can switch it, so while there is one, a stopped machine is only switched off."""

    shut_down: bool = False
    """It was stopped from inside."""

    notice: str = ""
    """Why the provider is about to end it; empty if it has not said so."""

    detail: str = ""

    @property
    def resting(self) -> bool:
        return self.state in (MachineState.STOPPING, MachineState.STOPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendLimits:
    """What may exist at one time; 0 for no limit."""

    instances: int = 0
    hourly_cost: float = 0.0
    hours: int = 0
    """Age at which a machine is deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """How many machines the provider allows, and how many exist, including other programs'."""

    instances: int
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The answer of a provider: all machines of a lab, and its quota if it tells."""

    machines: tuple[Machine, ...]
    quota: Quota | None = None
    gone: frozenset[str] = frozenset()
    """Ids of machines that the provider says have ended for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """How busy a host is, in percent."""

    cpu: int
    """Processes that run or wait for a processor, for each processor; above 100 if some wait."""

    memory: int
    """Memory that is not available without swapping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """One host of a backend that has hosts, as its status shows it."""

    name: str
    address: str
    slots: int
    used: int
    drain: bool
    answers: bool
    error: str
    load: HostLoad | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What is known of one backend. Times are steady: setting the clock changes nothing."""

    machines: tuple[Machine, ...] = ()
    begun: timedelta | None = None
    """When the last complete listing began; None if there was none since the start."""

    empty_since: timedelta | None = None
    """When the first of the latest listings began that showed nothing."""

    quota: Quota | None = None
    hosts: tuple[HostState, ...] = ()
    missing: Mapping[str, timedelta] = field(default_factory=dict)
    """By id of a machine, since when the listings lack it."""

    silent_since: timedelta | None = None
    """When it was first asked without an answer after its last one; None while it answers."""

    error: str = ""


def settings_of(parameters: Mapping[str, object]) -> str:
    """Identifies the parameters that a machine is created with."""
    text = json.dumps(parameters, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:SETTINGS_LENGTH]


def client_token(lab: str, key: Key, uid: str) -> str:
    """Identifies a creation to the provider, so that a repeated one creates nothing."""
    return hashlib.sha256("|".join((lab, *key, uid)).encode()).hexdigest()


def listed(before: Listing, found: Inventory, *, begun: timedelta) -> Listing:
    """The state after a complete listing.

    A machine that is not shown counts as existing for ``SETTLE_MAX``, unless it was deleted: it
    may be new, or the backend's listings may differ. One that the provider says is gone, is.
    """
    shown = {machine.id: _deleted_before(machine, before) for machine in found.machines}
    missing = {
        machine.id: before.missing.get(machine.id, begun)
        for machine in before.machines
        if machine.id not in shown
        and machine.id not in found.gone
        and machine.state is not MachineState.ENDING
    }
    late = [
        machine
        for machine in before.machines
        if machine.id in missing and begun - missing[machine.id] < SETTLE_MAX
    ]
    machines = tuple(sorted((*shown.values(), *late), key=_order))
    return Listing(
        machines=machines,
        begun=begun,
        empty_since=None if machines else before.empty_since or begun,
        quota=found.quota,
        missing={machine.id: missing[machine.id] for machine in late},
    )


def _deleted_before(machine: Machine, before: Listing) -> Machine:
    """A machine whose deletion was accepted is ending, whatever a listing says."""
    known = next((each for each in before.machines if each.id == machine.id), machine)
    return replace(machine, state=known.state) if known.state is MachineState.ENDING else machine


def put(before: Listing, machine: Machine) -> Listing:
    """The state after a machine was created or has changed."""
    others = (each for each in before.machines if each.id != machine.id)
    return replace(before, machines=tuple(sorted((*others, machine), key=_order)))


def touched(before: Listing) -> Listing:
    """The state when a machine may be created: the backend is not known to be empty any more."""
    return replace(before, empty_since=None)


def holds_nothing(listing: Listing) -> bool:
    """Whether complete listings have shown nothing for so long that nothing can appear."""
    if listing.begun is None or listing.empty_since is None:
        return False
    return listing.begun - listing.empty_since >= SETTLE_MAX


def silent(before: Listing, error: str, *, now: timedelta) -> Listing:
    """The state after a listing that failed: everything stays as it was last seen."""
    return replace(before, silent_since=before.silent_since or now, error=error)


def _order(machine: Machine) -> tuple[Key, datetime, str]:
    return machine.key, machine.created, machine.id


def surplus(machines: Iterable[Machine], owners: Mapping[Key, str]) -> tuple[Machine, ...]:
    """Machines besides the oldest of each Exporter: left by creations without an answer.

    ``machines``: of all backends. ``owners``: the uids of Exporters that have their machine; a
    machine of an earlier Exporter of such a name is left over, too. Two backends may be the same
    account, and list the same machine at different moments.
    """
    kept: dict[tuple[Key, str], str] = {}
    extra: list[Machine] = []
    for machine in sorted(machines, key=_order):
        if machine.state is MachineState.ENDING:
            continue
        key, uid = machine.key, machine.owner_uid
        if owners.get(key, uid) != uid or kept.setdefault((key, uid), machine.id) != machine.id:
            extra.append(machine)
    return tuple(extra)


def unowned(machines: Iterable[Machine], owners: Mapping[Key, str]) -> tuple[Machine, ...]:
    """The machines that no Exporter stands for. ``owners``: the uids of all Exporters."""
    return tuple(
        machine
        for machine in machines
        if owners.get(machine.key) != machine.owner_uid and machine.state is not MachineState.ENDING
    )


def expired(
    listing: Listing, limits: BackendLimits, *, used: Collection[str], now: datetime
) -> tuple[Machine, ...]:
    """The machines that ran for longer than the limit, or are past their end and of no use.

    ``used``: ids of machines that an Exporter stands for. Those are renewed instead, even if the
    clock was set past their end.
    """
    alive = [m for m in listing.machines if m.state is not MachineState.ENDING]
    oldest = now - timedelta(hours=limits.hours)
    return tuple(
        machine
        for machine in alive
        if not (machine.resting and machine.lasting)
        and (
            (limits.hours and (machine.started or machine.created) <= oldest)
            or (machine.expires is not None and machine.expires <= now and machine.id not in used)
        )
    )


def due_for_renewal(
    listing: Listing, *, used: Collection[str], now: datetime
) -> tuple[Machine, ...]:
    """The machines that an Exporter stands for and whose own end is near."""
    alive = (MachineState.STARTING, MachineState.RUNNING)
    return tuple(
        machine
        for machine in listing.machines
        if (machine.state in alive or (machine.resting and machine.switchable))
        and machine.id in used
        and machine.expires is not None
        and machine.expires - now < RENEW_BEFORE
    )


def no_room(listing: Listing, limits: BackendLimits, *, creating: int, hourly_cost: float) -> str:
    """Why no further machine may be created; empty if one may.

    ``creating``: creations that are under way. ``hourly_cost``: of the machine to be created.
    """
    count = sum(m.state is not MachineState.ENDING for m in listing.machines) + creating
    if limits.instances and count >= limits.instances:
        return f"{count} of at most {limits.instances} instances exist (limits.maxInstances)"
    quota = listing.quota
    if quota is not None and quota.used + creating >= quota.instances:
        return f"{quota.used} of the {quota.instances} instances of the provider's quota are used"
    return too_expensive(listing, limits, hourly_cost=(creating + 1) * hourly_cost)


def too_expensive(listing: Listing, limits: BackendLimits, *, hourly_cost: float) -> str:
    """Why nothing more of this cost may run; empty if it may."""
    cost = spend(listing) + hourly_cost
    if limits.hourly_cost and cost > limits.hourly_cost:
        return (
            f"another instance would cost {cost:.2f} an hour, at most"
            f" {limits.hourly_cost:.2f} are allowed (limits.maxHourlyCost)"
        )
    return ""


def beyond(listing: Listing, limits: BackendLimits) -> str:
    """Which limit or quota is reached, and how much is used; empty if there is room."""
    full = no_room(listing, limits, creating=0, hourly_cost=0.0)
    if full or not limits.hourly_cost or spend(listing) < limits.hourly_cost:
        return full
    return (
        f"the instances cost {spend(listing):.2f} an hour, at most {limits.hourly_cost:.2f} are"
        " allowed (limits.maxHourlyCost)"
    )


def spend(listing: Listing) -> float:
    """The estimated cost of everything that runs, per hour."""
    return sum(machine.hourly_cost for machine in listing.machines)


def is_settled(created: timedelta, listing: Listing) -> bool:
    """Whether a listing shows everything that was created at that time."""
    return listing.begun is not None and listing.begun >= created + SETTLE_MAX


def instance(
    machine: Machine,
    exporter: Instance | None,
    *,
    provisioner: str,
    known: bool,
    silent_for: timedelta,
) -> Instance:
    """A machine together with the exporter that is placed for it.

    ``known``: this process has what it needs to place the exporter. While an exporter runs, its
    target is not lost, however long the provider's API is silent.
    """
    made = Instance(
        key=machine.key,
        owner_uid=machine.owner_uid,
        provisioner=provisioner,
        phase=InstancePhase.BOOTING,
        detail=machine.detail,
        notice=machine.notice,
        provider_id=machine.id,
        addresses=(machine.address,) if machine.address else (),
    )
    own = exporter if exporter is not None and exporter.owner_uid == machine.owner_uid else None
    if own is not None and own.reason is not None:
        return _exited(made, own.reason, own.detail)
    if machine.state in (MachineState.ENDING, MachineState.FAILED):
        detail = machine.detail or "the provider has ended its machine"
        return _exited(made, ExitReason.LOST, detail)
    if machine.resting and own is not None and not machine.switchable:
        reason = ExitReason.COMPLETED if machine.shut_down else ExitReason.LOST
        return _exited(made, reason, machine.detail or "its machine was stopped")
    if machine.resting and own is None and machine.lasting:
        return replace(made, phase=InstancePhase.STOPPED)
    if machine.resting and own is None:
        return _exited(made, ExitReason.LOST, machine.detail or "its machine was stopped")
    if own is not None:
        return replace(made, phase=own.phase, detail=own.detail)
    if silent_for >= LOST_AFTER:
        detail = f"its backend has not answered for {silent_for.total_seconds():.0f} s"
        return _exited(made, ExitReason.LOST, detail)
    return replace(made, incomplete=not known)


def without_machine(exporter: Instance, *, confirmed: bool) -> Instance:
    """The instance of an exporter whose machine is not listed. ``confirmed``: it is gone."""
    if not confirmed or not exporter.up:
        return exporter
    return _exited(replace(exporter, held=""), ExitReason.LOST, "its machine is gone")


def _exited(made: Instance, reason: ExitReason, detail: str) -> Instance:
    return replace(made, phase=InstancePhase.EXITED, reason=reason, detail=detail)
