"""A ProviderConfig: when it is on record, and what its status says. Pure.

The record that a backend may hold something of ours is a finalizer. It keeps the ProviderConfig,
its Secret and the classes that refer to it, so that what costs money can always be listed and
deleted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from bullpen.api.kinds.providerconfig import (
    ProviderConfig,
    ProviderConfigSpec,
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

PLACE = "virtualtarget.jumpstarter.dev/provider-place"
"""Annotation of a ProviderConfig on record: the settings that its instances were made with."""

POLL = timedelta(seconds=10)
"""How often a backend is listed."""

LOAD_STEP = 10
"""A host's load is reported when it has changed by so many points, not with each listing."""

POLL_BUSY = timedelta(seconds=2)
"""How often it is listed while a machine starts, stops or ends."""

LAB_LENGTH = 16

REACHABLE, IN_USE, SETTINGS = "Reachable", "InUse", "SettingsInEffect"
ORPHANS, FULL = "Orphans", "LimitReached"


def lab(identity: str, namespace_uid: str) -> str:
    """What marks the machines of one namespace: short, because some providers have only names."""
    return hashlib.sha256(f"{identity}|{namespace_uid}".encode()).hexdigest()[:LAB_LENGTH]


def limits(given: ProviderLimits) -> BackendLimits:
    cost = float(given.max_hourly_cost or 0)
    return BackendLimits(instances=given.max_instances, hourly_cost=cost, hours=given.max_hours)


def on_record(meta: ObjectMeta) -> bool:
    return RECORD in meta.finalizers


def recorded(meta: ObjectMeta, *, kept: bool, place: str = "") -> ObjectMeta:
    """The metadata with or without the record."""
    finalizers = tuple(name for name in meta.finalizers if name != RECORD)
    annotations = {name: text for name, text in meta.annotations.items() if name != PLACE}
    if kept:
        finalizers = meta.finalizers if on_record(meta) else (*finalizers, RECORD)
        annotations = {**annotations, **({PLACE: place} if place else {})}
    made = replace(meta, finalizers=finalizers, annotations=annotations)
    return meta if made == meta else made


def place_of(spec: ProviderConfigSpec) -> str:
    """Identifies where the instances of a ProviderConfig are: all that may decide about it."""
    facts = {
        "provisioner": spec.provisioner,
        "endpoint": spec.endpoint,
        "parameters": spec.parameters,
    }
    return json.dumps(facts, sort_keys=True, separators=(",", ":"))


def in_effect(config: ProviderConfig) -> ProviderConfigSpec:
    """The spec with the settings of the place that is on record, if there is one.

    Instances there would be forgotten, and cost money, if other settings took effect before they
    are gone.
    """
    try:
        found = json.loads(config.metadata.annotations.get(PLACE, ""))
        return replace(
            config.spec,
            provisioner=found["provisioner"],
            endpoint=found["endpoint"],
            parameters=dict(found["parameters"]),
        )
    except (ValueError, KeyError, TypeError):
        return config.spec


def pending(config: ProviderConfig) -> tuple[str, ...]:
    """The settings that do not take effect before the place on record is empty."""
    used, given = in_effect(config), config.spec
    names = ("provisioner", "endpoint", "parameters")
    return tuple(name for name in names if getattr(used, name) != getattr(given, name))


def needed_secrets(configs: Iterable[ProviderConfig]) -> frozenset[str]:
    """The Secrets without which something that is on record could not be deleted."""
    kept = (config.spec.credentials_secret_ref for config in configs if on_record(config.metadata))
    return frozenset(found.name for found in kept if found is not None)


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
    waiting = ", ".join(pending(config))
    found = conditions.condition(
        found,
        SETTINGS,
        status=not waiting,
        reason="MayHoldInstances" if waiting else "Applied",
        message=f"{waiting}: those of before are used until no instance is left" if waiting else "",
        generation=generation,
        now=now,
    )
    orphans = sum(not _is_owned(machine, seen.owners) for machine in listing.machines)
    found = conditions.condition(
        found,
        ORPHANS,
        status=bool(orphans),
        reason="BeingDeleted" if orphans else "AllOwned",
        message=f"instances that no Exporter stands for: {orphans}" if orphans else "",
        generation=generation,
        now=now,
    )
    full = backends.beyond(listing, limits(config.spec.limits))
    found = conditions.condition(
        found,
        FULL,
        status=bool(full),
        reason="NothingIsCreated" if full else "RoomLeft",
        message=full,
        generation=generation,
        now=now,
    )
    return ProviderConfigStatus(
        observed_generation=generation,
        instances=held,
        orphans=orphans,
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
