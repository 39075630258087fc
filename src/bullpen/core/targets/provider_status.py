"""A ProviderConfig: when it is on record, and what its status says. Pure.

The record that a backend may hold something of ours is a finalizer. It keeps the ProviderConfig,
its Secret and the classes that refer to it, so that what costs money can always be listed and
deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from bullpen.api.kinds.providerconfig import (
    ProviderConfig,
    ProviderConfigStatus,
    ProviderHost,
    ProviderLimits,
    ProviderQuota,
)
from bullpen.api.meta import ObjectMeta
from bullpen.core import conditions
from bullpen.core.targets import backends
from bullpen.core.targets.backends import (
    BackendLimits,
    HostState,
    Key,
    Listing,
    Machine,
    MachineState,
)

RECORD = "virtualtarget.jumpstarter.dev/provider-in-use"
"""Finalizer: this backend may hold something of ours."""

POLL = timedelta(seconds=10)
"""How often a backend is listed."""

LOAD_STEP = 10
"""A host's load is reported when it has changed by so many points, not with each listing."""

POLL_BUSY = timedelta(seconds=2)
"""How often it is listed while a machine starts, stops or ends."""

LAB_LENGTH = 16

REACHABLE, IN_USE = "Reachable", "InUse"


def lab(identity: str, namespace_uid: str) -> str:
    """What marks the machines of one namespace: short, because some providers have only names."""
    return hashlib.sha256(f"{identity}|{namespace_uid}".encode()).hexdigest()[:LAB_LENGTH]


def limits(given: ProviderLimits) -> BackendLimits:
    cost = float(given.max_hourly_cost or 0)
    return BackendLimits(instances=given.max_instances, hourly_cost=cost, hours=given.max_hours)


def on_record(meta: ObjectMeta) -> bool:
    return RECORD in meta.finalizers


def recorded(meta: ObjectMeta, *, kept: bool) -> ObjectMeta:
    """The metadata with or without the record."""
    if kept == on_record(meta):
        return meta
    others = tuple(name for name in meta.finalizers if name != RECORD)
    return replace(meta, finalizers=(*others, RECORD) if kept else others)


def next_listing(listing: Listing) -> timedelta:
    """How long to wait before the backend is listed again."""
    moving = (MachineState.STARTING, MachineState.STOPPING, MachineState.ENDING)
    busy = any(machine.state in moving for machine in listing.machines)
    return POLL_BUSY if busy or listing.missing else POLL


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderView:
    """What a status is made from."""

    config: ProviderConfig
    listing: Listing
    owners: Mapping[Key, str] = field(default_factory=dict)
    """The uids of the Exporters with the names of its machines."""


def status(seen: ProviderView, *, now: datetime) -> ProviderConfigStatus:
    config, listing = seen.config, seen.listing
    generation = config.metadata.generation
    found = conditions.condition(
        config.status.conditions,
        REACHABLE,
        status=listing.begun is not None and not listing.error,
        reason=_reachability(listing),
        message=listing.error,
        generation=generation,
        now=now,
    )
    used = on_record(config.metadata)
    known = {host.name: host for host in config.status.hosts}
    held = len(listing.machines)
    found = conditions.condition(
        found,
        IN_USE,
        status=used,
        reason="MayHoldInstances" if used else "Empty",
        message=f"instances: {held}; the object is kept until there are none" if used else "",
        generation=generation,
        now=now,
    )
    return ProviderConfigStatus(
        observed_generation=generation,
        instances=held,
        orphans=sum(not _is_owned(machine, seen.owners) for machine in listing.machines),
        quota=_quota(listing),
        hourly_cost=f"{backends.spend(listing):.2f}" if listing.begun is not None else "",
        hosts=tuple(
            _host(host, known.get(host.name, ProviderHost(name=host.name)))
            for host in listing.hosts
        ),
        last_error=listing.error,
        conditions=found,
    )


def _host(host: HostState, before: ProviderHost) -> ProviderHost:
    load = host.load
    return ProviderHost(
        name=host.name,
        address=host.address,
        slots=host.slots,
        used=host.used,
        drain=host.drain,
        answering=host.answers,
        error=host.error,
        cpu_percent=_stepped(load.cpu, before.cpu_percent) if load else None,
        memory_percent=_stepped(load.memory, before.memory_percent) if load else None,
    )


def _stepped(value: int, before: int | None) -> int:
    """A load to report: what was reported before, unless it has changed by a step."""
    if before is not None and abs(value - before) < LOAD_STEP:
        return before
    return round(value / LOAD_STEP) * LOAD_STEP


def _is_owned(machine: Machine, owners: Mapping[Key, str]) -> bool:
    return owners.get(machine.key) == machine.owner_uid


def _quota(listing: Listing) -> ProviderQuota | None:
    found = listing.quota
    return ProviderQuota(instances=found.instances, used=found.used) if found else None


def _reachability(listing: Listing) -> str:
    if listing.error:
        return "NotAnswering"
    return "Listed" if listing.begun is not None else "NotListedYet"
