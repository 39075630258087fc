"""Exporter: a service that offers one target, physical or virtual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from bullpen.api.columns import Column
from bullpen.api.fields import Kind, Struct, about
from bullpen.api.kinds.client import GROUP_VERSION
from bullpen.api.meta import Condition, LocalObjectReference, ObjectMeta
from bullpen.api.resource import resource


class ExporterStatusValue(StrEnum):
    """What an exporter says it is doing."""

    UNSPECIFIED = "Unspecified"
    OFFLINE = "Offline"
    AVAILABLE = "Available"
    BEFORE_LEASE_HOOK = "BeforeLeaseHook"
    LEASE_READY = "LeaseReady"
    AFTER_LEASE_HOOK = "AfterLeaseHook"
    BEFORE_LEASE_HOOK_FAILED = "BeforeLeaseHookFailed"
    AFTER_LEASE_HOOK_FAILED = "AfterLeaseHookFailed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSpec(Struct):
    """Who the exporter is and whether it may be leased."""

    username: str = field(
        default="", metadata=about("External identity of the exporter, such as dex:rpi4.")
    )
    enabled: bool = field(
        default=True,
        metadata=about("Whether new leases may take the exporter.", defaulted=True),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(Struct):
    """One driver instance the exporter reported."""

    uuid: str = field(default="", metadata=about("Identity of the instance in this session."))
    parent_uuid: str = field(
        default="", metadata=about("Identity of the parent instance.", name="parent_uuid")
    )
    labels: Mapping[str, str] = field(
        default_factory=dict, metadata=about("Labels the driver reported.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterStatus(Struct):
    """What the controller knows about the exporter."""

    conditions: tuple[Condition, ...] = field(
        default=(),
        metadata=about("Latest observations: Registered, Online, Stuck.", list_keys=("type",)),
    )
    credential: LocalObjectReference | None = field(
        default=None, metadata=about("Secret with the exporter's token.")
    )
    devices: tuple[Device, ...] = field(
        default=(), metadata=about("Driver instances of the exporter.", list_type="atomic")
    )
    lease_ref: LocalObjectReference | None = field(
        default=None, metadata=about("The lease that holds the exporter now.")
    )
    lease_uid: str = field(
        default="",
        metadata=about("Uid of that lease; tells it apart from a later one of the same name."),
    )
    lease_epoch: int = field(
        default=0,
        metadata=about(
            "Counts the leases and hand-overs of the exporter; fences off older ones.", minimum=0
        ),
    )
    last_seen: datetime | None = field(
        default=None, metadata=about("When the exporter was last heard from.")
    )
    endpoint: str = field(
        default="", metadata=about("Endpoint of the controller that serves the exporter.")
    )
    exporter_status: ExporterStatusValue | None = field(
        default=None, metadata=about("State reported by the exporter.")
    )
    status_before_loss: ExporterStatusValue | None = field(
        default=None,
        metadata=about("State before the connection was lost; absent while it is connected."),
    )
    status_message: str = field(
        default="", metadata=about("Status message reported by the exporter.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter(Kind):
    """A service that offers one target, physical or virtual."""

    api_version: ClassVar[str] = GROUP_VERSION
    kind: ClassVar[str] = "Exporter"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: ExporterSpec = field(
        default=ExporterSpec(),
        metadata=about("Who the exporter is and whether it may be leased.", defaulted=True),
    )
    status: ExporterStatus = field(
        default=ExporterStatus(),
        metadata=about("What the controller knows about the exporter."),
    )


RESOURCES = (
    resource(
        Exporter,
        "exporters",
        status=True,
        columns=(
            Column(name="Enabled", path=".spec.enabled", type="boolean"),
            Column(name="Status", path=".status.exporterStatus"),
            Column(name="Message", path=".status.statusMessage", priority=1),
        ),
    ),
)
