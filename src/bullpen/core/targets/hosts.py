"""Hosts that run instances: which one an instance gets, and what is known of those elsewhere. Pure.

An instance stays at the host that is on record for it: another host may have it only after the
first has shown that it does not. A host that does not answer may run all that it was last seen to
run; when no service has reached it for ``LOST_AFTER``, it has ended all of that by itself.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from bullpen.core.targets.backends import LOST_AFTER, HostLoad, HostState
from bullpen.core.targets.instances import ExitReason, Instance, InstancePhase

Key = tuple[str, str]

IN_CLUSTER = (".svc", ".svc.cluster.local")
"""What names of Services end with."""

RECORD = "virtualtarget.jumpstarter.dev/host"
"""Annotation of an Exporter: ProviderConfig and host that were asked to run its instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The host that is on record for the instance of an Exporter."""

    uid: str
    config: str
    host: str


def record(config: str, host: str) -> str:
    return f"{config}/{host}"


def placed(uid: str, annotations: Mapping[str, str]) -> Placed | None:
    """What is on record for an Exporter; None if nothing is."""
    config, _, host = annotations.get(RECORD, "").partition("/")
    return Placed(uid=uid, config=config, host=host) if host else None


def unseen(key: Key, on_record: Placed, *, provisioner: str) -> Instance:
    """An instance that its host has not shown since the service started, and may run."""
    return Instance(
        key=key,
        owner_uid=on_record.uid,
        provisioner=provisioner,
        phase=InstancePhase.RUNNING,
        detail=f"host {on_record.host} has not answered yet",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """What is known of one host. Times are steady."""

    name: str
    address: str
    slots: int
    labels: Mapping[str, str] = field(default_factory=dict)
    drain: bool = False
    instances: tuple[Instance, ...] = ()
    """As last seen."""

    starting: frozenset[Key] = frozenset()
    """Instances that it was asked to start and that may not be among those yet."""

    listed: bool = False
    """It has answered since this service started."""

    silent_since: timedelta | None = None
    """When it was first asked without an answer after its last one; None while it answers."""

    error: str = ""
    load: HostLoad | None = None
    """As last seen; None if its agent does not say."""

    @property
    def answers(self) -> bool:
        return self.listed and self.silent_since is None

    @property
    def taken(self) -> frozenset[Key]:
        """The instances that have a slot."""
        return self.starting | {each.key for each in self.instances if each.up}

    @property
    def state(self) -> HostState:
        return HostState(
            name=self.name,
            address=self.address,
            slots=self.slots,
            used=len(self.taken),
            drain=self.drain,
            answers=self.answers,
            error=self.error,
            load=self.load if self.answers else None,
        )


@dataclass(frozen=True, slots=True)
class Chosen:
    host: str


@dataclass(frozen=True, slots=True)
class Full:
    """Every host that may be used has as many instances as it has slots."""

    reason: str


@dataclass(frozen=True, slots=True)
class Silent:
    """The host that may run the instance, or every host, does not answer."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unsuitable:
    """The settings allow no host."""

    reason: str


Choice = Chosen | Full | Silent | Unsuitable


def choose(
    hosts: Iterable[HostView],
    key: Key,
    *,
    recorded: str = "",
    selector: Mapping[str, str] | None = None,
) -> Choice:
    """The host for an instance that no host is known to run.

    The one that is on record, as long as it is used at all; else the one with the fewest
    instances among those that answer, are not drained and have the labels of ``selector``.
    """
    given = sorted(hosts, key=lambda host: host.name)
    before = next((host for host in given if host.name == recorded), None)
    if before is not None and not before.answers:
        return Silent(f"host {before.name} may run it and does not answer: {_why(before)}")
    suitable = [host for host in given if not host.drain and _has(host, selector or {})]
    if not suitable:
        return Unsuitable("no host is suitable: all are drained or lack a label of nodeSelector")
    answering = [host for host in suitable if host.answers]
    if not answering:
        silent = "; ".join(f"host {host.name}: {_why(host)}" for host in suitable)
        return Silent(f"no host answers: {silent}")
    if before in answering:
        return Chosen(before.name)
    free = [host for host in answering if len(host.taken - {key}) < host.slots]
    if not free:
        slots = sum(host.slots for host in answering)
        return Full(f"all {slots} slots of {_names(answering)} are taken")
    return Chosen(min(free, key=lambda host: (len(host.taken), host.name)).name)


def seen(instance: Instance, host: HostView, *, silent_for: timedelta) -> Instance:
    """An instance as it was last seen; lost when its host must have ended it by itself."""
    if host.answers or not instance.up or silent_for < LOST_AFTER:
        return instance
    detail = f"host {host.name} has not answered for {silent_for.total_seconds():.0f} s"
    phase = InstancePhase.EXITED
    return replace(instance, phase=phase, reason=ExitReason.LOST, held="", detail=detail)


def problems(hosts: Iterable[HostView]) -> str:
    """Which hosts cannot be used, and why; empty if all can."""
    return "; ".join(f"host {host.name}: {host.error}" for host in hosts if host.error)


def unusable_endpoint(endpoint: str, host: HostView) -> str:
    """Why exporters at a host could not reach this service; empty if they may."""
    name = endpoint.rpartition(":")[0]
    if name.endswith(IN_CLUSTER):
        return (
            f"exporters on host {host.name} cannot reach {endpoint}, which is a name of the"
            " cluster only: set controller.endpoint and router.endpoint of the installation"
        )
    if not _is_loopback(name) or _is_loopback(host.address):
        return ""
    return (
        f"exporters on host {host.name} cannot reach {endpoint}, which is this machine only:"
        " start the service with --listen and --endpoint (docs/how-to/pool-hosts.md)"
    )


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name == "localhost"


def _has(host: HostView, selector: Mapping[str, str]) -> bool:
    return all(host.labels.get(name) == value for name, value in selector.items())


def _why(host: HostView) -> str:
    return host.error or "it has not been asked yet"


def _names(hosts: Iterable[HostView]) -> str:
    return ", ".join(host.name for host in hosts)
