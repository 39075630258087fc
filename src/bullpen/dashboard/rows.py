"""Objects as rows of the pages: what a person looks for in a list, and little else.

Pure. A lab has ten thousand targets, so a row holds no more than the lists show.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from bullpen.api.kinds.deviceclaim import (
    AllocationMode,
    DeviceClaim,
    DeviceConstraint,
    DeviceRequest,
    ExactRequest,
)
from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import SET_NAME, Decision, ExporterSet
from bullpen.api.kinds.lease import Lease
from bullpen.api.kinds.providerconfig import ProviderConfig
from bullpen.api.kinds.virtualtargetpool import POOL_NAME, VirtualTargetPool
from bullpen.api.meta import Condition, ConditionStatus
from bullpen.core import conditions
from bullpen.core.claims.claim_queue import WaitReason
from bullpen.core.exporters import presence
from bullpen.core.exporters.target_state import pool_of, target_state
from bullpen.core.leases import lifecycle
from bullpen.core.leases.lifecycle import Phase
from bullpen.core.matcher import matcher_of
from bullpen.core.pools import boot_times
from bullpen.core.targets import hosts
from bullpen.kit import times

TARGET, LEASE, CLAIM, POOL, PROVIDER = "target", "lease", "claim", "pool", "provider"
"""Kinds of rows."""

Row = dict[str, Any]


def target_row(exporter: Exporter, lease: Lease | None, *, hidden: frozenset[str]) -> Row:
    """``lease``: the one that holds the exporter. ``hidden``: labels that no row shows."""
    meta, labels = exporter.metadata, exporter.metadata.labels
    row: Row = {
        "ns": meta.namespace,
        "name": meta.name,
        "state": target_state(exporter),
        "labels": {key: value for key, value in labels.items() if key not in hidden},
    }
    pool = pool_of(exporter)
    if pool:
        row["pool"] = pool
    placed = hosts.placed(meta.uid, meta.annotations)
    if placed is not None:
        row["host"] = placed.host
    if exporter.status.lease_ref is not None:
        row["lease"] = exporter.status.lease_ref.name
    if lease is not None:
        row["holder"] = lifecycle.holder(lease)
        row["until"] = _time(lifecycle.expires_at(lease))
    if presence.stuck(exporter):
        row["stuck"] = True
    message = _target_message(exporter)
    if message:
        row["message"] = message
    return row


def _target_message(exporter: Exporter) -> str:
    """Why the target is not usable, if something says so."""
    if presence.stuck(exporter):
        found = conditions.get(exporter.status.conditions, "Stuck")
        return found.message if found is not None else ""
    if not presence.online(exporter):
        found = conditions.get(exporter.status.conditions, "Online")
        return found.message if found is not None else ""
    return exporter.status.status_message if not presence.idle(exporter) else ""


def target_detail(exporter: Exporter, history: Iterable[Lease], *, now: datetime) -> Row:
    """What the page of one target shows besides its row."""
    return {
        "drivers": _drivers(exporter),
        "conditions": [_condition(found) for found in exporter.status.conditions],
        "enabled": exporter.spec.enabled,
        "lastSeen": _time(exporter.status.last_seen),
        "status": exporter.status.exporter_status or "",
        "history": [lease_row(lease, now=now) for lease in history],
    }


def _drivers(exporter: Exporter) -> list[Row]:
    """The drivers as a flat list in tree order, with their depth."""
    children: dict[str, list[Any]] = {}
    known = {device.uuid for device in exporter.status.devices}
    for device in exporter.status.devices:
        parent = device.parent_uuid if device.parent_uuid in known else ""
        children.setdefault(parent, []).append(device)
    rows: list[Row] = []
    waiting = [(device, 0) for device in reversed(children.get("", []))]
    while waiting:
        device, depth = waiting.pop()
        rows.append(
            {
                "name": device.labels.get("jumpstarter.dev/name", ""),
                "client": device.labels.get("jumpstarter.dev/client", ""),
                "depth": depth,
            }
        )
        below = children.pop(device.uuid, [])
        waiting.extend((child, depth + 1) for child in reversed(below))
    return rows


def lease_row(lease: Lease, *, now: datetime) -> Row:
    spec, status = lease.spec, lease.status
    phase = lifecycle.phase(lease, now=now)
    held = status.exporter_ref
    row: Row = {
        "ns": lease.metadata.namespace,
        "name": lease.metadata.name,
        "client": lifecycle.holder(lease),
        "phase": phase.name.lower(),
        "wanted": wanted(lease),
        "target": held.name if held else "",
        "created": _time(lease.metadata.creation_timestamp),
        "begin": _time(status.begin_time or lifecycle.begins_at(spec)),
        "end": _time(status.end_time or lifecycle.expires_at(lease)),
        "seconds": _seconds(lifecycle.lasts(lease, now=now)),
        "priority": status.priority,
        "reason": "",
        "message": "",
    }
    owners = lease.metadata.owner_references
    claim = next((r.name for r in owners if r.controller and r.kind == DeviceClaim.kind), "")
    if claim:
        row["claim"] = claim
    said = _said(status.conditions, phase)
    if said is not None:
        row["reason"], row["message"] = said.reason, said.message
    return row


def claim_row(claim: DeviceClaim) -> Row:
    spec, status = claim.spec, claim.status
    said = conditions.get(status.conditions, "Ready")
    warned = conditions.get(status.conditions, "Preempted")
    reserved = said is not None and said.reason == WaitReason.RESERVED
    return {
        "ns": claim.metadata.namespace,
        "name": claim.metadata.name,
        "client": spec.client_ref.name,
        "phase": "active" if status.members else "scheduled" if reserved else "waiting",
        "requests": [_asked(each) for each in spec.requests],
        "constraints": [_constraint(each) for each in spec.constraints],
        "members": [
            {
                "request": member.request,
                "alternative": member.alternative,
                "device": member.device,
                "lease": member.lease_ref.name if member.lease_ref is not None else "",
            }
            for member in status.members
        ],
        "created": _time(claim.metadata.creation_timestamp),
        "begin": _time(spec.begin_time),
        "seconds": _seconds(spec.duration),
        "priority": spec.rank,
        "reason": said.reason if said is not None else "",
        "message": said.message if said is not None else "",
        "warning": warned.message
        if warned is not None and warned.status is ConditionStatus.TRUE
        else "",
    }


def _asked(request: DeviceRequest) -> str:
    """A request in a few words, such as ``dut: 2 board or qemu``."""
    forms = (request.exactly,) if request.exactly is not None else request.first_available
    return f"{request.name}: " + " or ".join(_form(form) for form in forms)


def _form(form: ExactRequest) -> str:
    if form.allocation_mode is AllocationMode.ALL:
        return f"all {form.device_class_name}"
    return f"{form.count} {form.device_class_name}" if form.count > 1 else form.device_class_name


def _constraint(found: DeviceConstraint) -> str:
    attribute = found.match_attribute or found.distinct_attribute
    word = "same" if found.match_attribute else "different"
    where = f" of {', '.join(found.requests)}" if found.requests else ""
    return f"{word} {attribute}{where}" + (" if possible" if found.prefer else "")


def wanted(lease: Lease) -> str:
    """The selector of a lease, or the exporter that it names."""
    named = lease.spec.exporter_ref
    return f"name={named.name}" if named is not None else str(matcher_of(lease.spec))


def _said(found: tuple[Condition, ...], phase: Phase) -> Condition | None:
    """The condition that explains the state of a lease."""
    kinds = ("Ready",) if phase in (Phase.ACTIVE, Phase.ENDED) else ("Pending",)
    for kind in ("Invalid", "Unsatisfiable", *kinds):
        item = conditions.get(found, kind)
        if item is not None and (item.status is ConditionStatus.TRUE or kind == "Ready"):
            return item
    return None


def set_row(found: ExporterSet) -> Row:
    spec, status = found.spec, found.status
    boots = boot_times.of(status)
    return {
        **_pool_row(found.metadata.namespace, found.metadata.name, "ExporterSet"),
        "class": spec.virtual_target_class_name,
        "paused": spec.paused,
        "min": spec.min_replicas,
        "max": spec.max_replicas,
        "wantedWarm": spec.min_available_replicas,
        "replicas": status.replicas,
        "warm": status.available_replicas,
        "starting": status.pods_pending,
        "failed": status.pods_failed,
        "leased": status.leased_replicas,
        "bootSeconds": _seconds(boots.typical),
        "slowBootSeconds": _seconds(boots.slow),
        "boots": [_seconds(each) for each in boots.recent],
        "labels": dict(spec.template.metadata.labels),
        **_reports(status.conditions, status.decisions),
    }


def pool_row(found: VirtualTargetPool) -> Row:
    spec, status = found.spec, found.status
    return {
        **_pool_row(found.metadata.namespace, found.metadata.name, "VirtualTargetPool"),
        "class": spec.template.spec.virtual_target_class_name,
        "paused": spec.paused,
        "min": spec.replicas,
        "max": spec.replicas,
        "wantedWarm": 0,
        "replicas": status.replicas,
        "warm": status.available_replicas,
        "starting": max(status.replicas - status.ready_replicas, 0),
        "failed": 0,
        "leased": status.leased_replicas,
        "bootSeconds": None,
        "slowBootSeconds": None,
        "boots": [],
        "labels": dict(spec.template.metadata.labels),
        **_reports(status.conditions, status.decisions),
    }


def pool_row_name(exporter: Exporter) -> str:
    """The name in the row of the pool that an exporter is a member of; empty if none."""
    labels = exporter.metadata.labels
    for kind, label in ((ExporterSet.kind, SET_NAME), (VirtualTargetPool.kind, POOL_NAME)):
        if label in labels:
            return f"{kind}/{labels[label]}"
    return ""


def _pool_row(namespace: str, name: str, kind: str) -> Row:
    return {"ns": namespace, "name": f"{kind}/{name}", "title": name, "kind": kind}


def _reports(found: tuple[Condition, ...], decisions: tuple[Decision, ...]) -> Row:
    return {
        "conditions": [_condition(each) for each in found],
        "decisions": [
            {
                "time": _time(each.time),
                "action": each.action,
                "name": each.name,
                "count": each.count,
                "rule": each.rule,
                "message": each.message,
            }
            for each in reversed(decisions)
        ],
    }


def provider_row(found: ProviderConfig) -> Row:
    """An account or set of hosts; its parameters are left out, except for its hosts."""
    spec, status = found.spec, found.status
    quota = status.quota
    return {
        "ns": found.metadata.namespace,
        "name": found.metadata.name,
        "provisioner": spec.provisioner,
        "endpoint": spec.endpoint,
        "deleting": found.metadata.deletion_timestamp is not None,
        "instances": status.instances,
        "orphans": status.orphans,
        "quota": {"instances": quota.instances, "used": quota.used} if quota else None,
        "maxInstances": spec.limits.max_instances,
        "hourlyCost": status.hourly_cost,
        "maxHourlyCost": spec.limits.max_hourly_cost,
        "maxHours": spec.limits.max_hours,
        "error": status.last_error,
        "conditions": [_condition(each) for each in status.conditions],
        "hosts": [
            {
                "name": host.name,
                "address": host.address,
                "slots": host.slots,
                "used": host.used,
                "drain": host.drain,
                "answering": host.answering,
                "error": host.error,
                "cpu": host.cpu_percent,
                "memory": host.memory_percent,
            }
            for host in status.hosts
        ],
    }


def _condition(found: Condition) -> Row:
    return {
        "type": found.type,
        "status": found.status.value,
        "reason": found.reason,
        "message": found.message,
        "since": _time(found.last_transition_time),
    }


def _time(moment: datetime | None) -> str | None:
    return times.text(moment) if moment is not None else None


def _seconds(span: timedelta | None) -> float | None:
    return span.total_seconds() if span is not None else None
