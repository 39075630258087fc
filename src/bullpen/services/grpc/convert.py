"""Converts objects to Jumpstarter's messages and back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from jumpstarter_protocol import client_pb2, jumpstarter_pb2, kubernetes_pb2

from bullpen.api.kinds.exporter import Device, Exporter, ExporterStatusValue
from bullpen.api.kinds.lease import Lease
from bullpen.api.meta import Condition
from bullpen.core.exporters import presence
from bullpen.core.leases import lifecycle
from bullpen.errors import BadRequest

_STATUSES = {
    ExporterStatusValue.UNSPECIFIED: 0,
    ExporterStatusValue.OFFLINE: 1,
    ExporterStatusValue.AVAILABLE: 2,
    ExporterStatusValue.BEFORE_LEASE_HOOK: 3,
    ExporterStatusValue.LEASE_READY: 4,
    ExporterStatusValue.AFTER_LEASE_HOOK: 5,
    ExporterStatusValue.BEFORE_LEASE_HOOK_FAILED: 6,
    ExporterStatusValue.AFTER_LEASE_HOOK_FAILED: 7,
}
_VALUES = {number: value for value, number in _STATUSES.items()}


def status_number(value: ExporterStatusValue | None) -> int:
    return _STATUSES[value or ExporterStatusValue.UNSPECIFIED]


def status_value(number: int) -> ExporterStatusValue:
    """An unknown status of a newer exporter counts as no status."""
    return _VALUES.get(number, ExporterStatusValue.UNSPECIFIED)


def lease_message(lease: Lease, *, now: datetime) -> Any:
    """A Lease as clients read it: ``client`` is always set, conditions keep their order."""
    meta, spec, status = lease.metadata, lease.spec, lease.status
    message = client_pb2.Lease(
        name=f"namespaces/{meta.namespace}/leases/{meta.name}",
        selector=str(spec.selector.selector()) or "<none>",
        duration=duration(lifecycle.length(spec) or timedelta(0)),
        effective_duration=duration(_effective(lease, now)),
        client=f"namespaces/{meta.namespace}/clients/{spec.client_ref.name}",
        conditions=[condition(item) for item in status.conditions],
        tags=dict(spec.tags),
        allow_disabled=spec.allow_disabled,
    )
    for name, moment in (
        ("begin_time", spec.begin_time),
        ("end_time", spec.end_time),
        ("effective_begin_time", status.begin_time),
        ("effective_end_time", status.end_time if status.begin_time else None),
    ):
        if moment is not None:
            getattr(message, name).CopyFrom(timestamp(moment))
    if status.exporter_ref is not None:
        message.exporter = f"namespaces/{meta.namespace}/exporters/{status.exporter_ref.name}"
    if spec.exporter_ref is not None:
        message.exporter_name = spec.exporter_ref.name
    return message


def _effective(lease: Lease, now: datetime) -> timedelta:
    begin = lease.status.begin_time
    if begin is None:
        return timedelta(0)
    return max((lease.status.end_time or now) - begin, timedelta(0))


def exporter_message(
    exporter: Exporter, *, hidden: frozenset[str], deprecated: Mapping[str, str], show_all: bool
) -> Any:
    """An Exporter as clients read it, without hidden labels."""
    labels = exporter.metadata.labels
    shown = {
        k: v for k, v in labels.items() if show_all or (k not in hidden and k not in deprecated)
    }
    return client_pb2.Exporter(
        name=f"namespaces/{exporter.metadata.namespace}/exporters/{exporter.metadata.name}",
        labels=shown,
        online=presence.online(exporter),
        status=status_number(exporter.status.exporter_status),
        status_message=exporter.status.status_message,
        enabled=exporter.spec.enabled,
        deprecated_labels={k: text for k, text in deprecated.items() if k in labels},
    )


def condition(item: Condition) -> Any:
    moment = item.last_transition_time
    return kubernetes_pb2.Condition(
        type=item.type,
        status=item.status.value,
        observedGeneration=item.observed_generation,
        lastTransitionTime=kubernetes_pb2.Time(
            seconds=int(moment.timestamp()), nanos=moment.microsecond * 1000
        ),
        reason=item.reason,
        message=item.message,
    )


def devices(reports: Any) -> tuple[Device, ...]:
    return tuple(
        Device(uuid=r.uuid, parent_uuid=r.parent_uuid, labels=dict(r.labels)) for r in reports
    )


def duration(value: timedelta) -> Any:
    message = Duration()
    message.FromTimedelta(value)
    return message


def timestamp(value: datetime) -> Any:
    message = Timestamp()
    message.FromDatetime(value)
    return message


def moment_of(message: Any, field: str) -> datetime | None:
    """A Timestamp field if set; raises ``BadRequest`` if it is out of range."""
    if not message.HasField(field):
        return None
    try:
        found: datetime = getattr(message, field).ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise BadRequest(f"{field} is not a time") from None
    return found


def span_of(message: Any, field: str) -> timedelta | None:
    """A Duration field if set."""
    if not message.HasField(field):
        return None
    try:
        found: timedelta = getattr(message, field).ToTimedelta()
    except (ValueError, OverflowError):
        raise BadRequest(f"{field} is not a valid duration") from None
    return found


def legacy_lease(lease: Lease, exporter_uid: str) -> Any:
    """The lease as returned by ControllerService.GetLease, for older clients."""
    spec, status = lease.spec, lease.status
    message = jumpstarter_pb2.GetLeaseResponse(
        duration=duration(lifecycle.length(spec) or timedelta(0)),
        selector=kubernetes_pb2.LabelSelector(
            match_labels=dict(spec.selector.match_labels),
            match_expressions=[
                kubernetes_pb2.LabelSelectorRequirement(
                    key=e.key, operator=e.operator, values=list(e.values)
                )
                for e in spec.selector.match_expressions
            ],
        ),
        conditions=[condition(item) for item in status.conditions],
    )
    if status.begin_time is not None:
        message.begin_time.CopyFrom(timestamp(status.begin_time))
    if status.end_time is not None:
        message.end_time.CopyFrom(timestamp(status.end_time))
    if exporter_uid:
        message.exporter_uuid = exporter_uid
    return message
