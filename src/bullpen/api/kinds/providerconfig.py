"""ProviderConfig: an account, project or set of hosts of a provider that makes machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from bullpen.api.columns import Column
from bullpen.api.fields import Kind, Struct, about
from bullpen.api.kinds.virtualtargetclass import GROUP_VERSION
from bullpen.api.meta import Condition, LocalObjectReference, ObjectMeta
from bullpen.api.resource import resource

INSTANCES_MAX = 100_000
HOURS_MAX = 8760
COST_PATTERN = r"^[0-9]{1,9}(\.[0-9]{1,4})?$"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderLimits(Struct):
    """What may exist at this provider; 0 or absent for no limit."""

    max_instances: int = field(
        default=0,
        metadata=about(
            "The most instances that exist at a time.", minimum=0, maximum=INSTANCES_MAX
        ),
    )
    max_hours: int = field(
        default=0,
        metadata=about(
            "Age in hours at which an instance is ended, even during a lease.",
            minimum=0,
            maximum=HOURS_MAX,
        ),
    )
    max_hourly_cost: str = field(
        default="",
        metadata=about(
            "The highest estimated cost of all instances together, per hour, in the currency of"
            " the provider's prices.",
            pattern=COST_PATTERN,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderConfigSpec(Struct):
    """How the provider is reached, and what may be created there."""

    provisioner: str = field(
        metadata=about("The provisioner that uses it.", required=True, min_length=1)
    )
    endpoint: str = field(
        default="", metadata=about("URL of the provider's API; its usual one if empty.")
    )
    credentials_secret_ref: LocalObjectReference | None = field(
        default=None,
        metadata=about("Secret with the provider's credentials. Exporters never get them."),
    )
    parameters: Mapping[str, object] = field(
        default_factory=dict,
        metadata=about("Settings the provisioner understands, such as the region or project."),
    )
    limits: ProviderLimits = field(
        default=ProviderLimits(), metadata=about("What may exist at this provider.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderQuota(Struct):
    """What the provider itself allows."""

    instances: int = field(default=0, metadata=about("Instances that it allows."))
    used: int = field(
        default=0, metadata=about("Instances that exist there, including those of other programs.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderHost(Struct):
    """What is known of one host of a provider that has hosts."""

    name: str = field(metadata=about("Its name in spec.parameters.", required=True))
    address: str = field(default="", metadata=about("Where it is reached."))
    slots: int = field(default=0, metadata=about("The most instances that run there at a time."))
    used: int = field(
        default=0, metadata=about("Slots with an instance that runs or starts, as last seen.")
    )
    drain: bool = field(default=False, metadata=about("Nothing is started there any more."))
    answering: bool = field(
        default=False, metadata=about("Whether it answered when it was last asked.")
    )
    error: str = field(
        default="", metadata=about("Why it cannot be used; empty if it can, or was not asked yet.")
    )
    cpu_percent: int | None = field(
        default=None,
        metadata=about(
            "Processes that ran or waited in the last minute, for each 100 processors; in steps of"
            " 10."
        ),
    )
    memory_percent: int | None = field(
        default=None, metadata=about("Share of its memory that is in use; in steps of 10.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderConfigStatus(Struct):
    """What is known of the provider."""

    observed_generation: int = field(
        default=0, metadata=about("The metadata.generation these facts are for.")
    )
    instances: int = field(
        default=0, metadata=about("Instances of this lab that exist, as last listed.")
    )
    orphans: int = field(
        default=0,
        metadata=about("Instances without an Exporter; they are being deleted."),
    )
    hourly_cost: str = field(
        default="", metadata=about("Estimated cost of these instances, per hour.")
    )
    quota: ProviderQuota | None = field(
        default=None, metadata=about("The provider's own limit, if it tells.")
    )
    hosts: tuple[ProviderHost, ...] = field(
        default=(),
        metadata=about("Its hosts, if it has any.", list_keys=("name",)),
    )
    last_error: str = field(
        default="", metadata=about("Why the provider was last not reached; empty while it is.")
    )
    conditions: tuple[Condition, ...] = field(
        default=(),
        metadata=about(
            "Latest observations: Reachable, InUse, Orphans, LimitReached, SettingsInEffect.",
            list_keys=("type",),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderConfig(Kind):
    """An account, project or set of hosts of a provider: endpoint, credentials and limits."""

    api_version: ClassVar[str] = GROUP_VERSION
    kind: ClassVar[str] = "ProviderConfig"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: ProviderConfigSpec = field(
        metadata=about("How the provider is reached, and what may be created.", required=True)
    )
    status: ProviderConfigStatus = field(
        default=ProviderConfigStatus(), metadata=about("What is known of the provider.")
    )


RESOURCES = (
    resource(
        ProviderConfig,
        "providerconfigs",
        status=True,
        columns=(
            Column(name="Provisioner", path=".spec.provisioner"),
            Column(name="Instances", path=".status.instances", type="integer"),
            Column(name="Hourly Cost", path=".status.hourlyCost"),
            Column(name="Last Error", path=".status.lastError", priority=1),
        ),
    ),
)
