"""The operator's settings: one optional YAML file, validated before anything starts."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import msgspec

from bullpen.api import yaml
from bullpen.api.kinds.lease import IDLE_MIN
from bullpen.audit.log import Rotation
from bullpen.controllers.pools.pool_observer import Tuning
from bullpen.core.leases.preemption import PreemptionTimes
from bullpen.core.leases.quotas import Quotas, Rate
from bullpen.core.notifications import EVENTS, Webhook
from bullpen.core.pools.members import PATIENCE
from bullpen.core.pools.start_throttle import START_THROTTLE
from bullpen.errors import BadRequest
from bullpen.kit import durations, quantities
from bullpen.placements.local.confinement import SandboxMode
from bullpen.placements.local.host_sandbox import SandboxSettings
from bullpen.placements.local.retention import RetentionLimits

AUDIT_BYTES_MIN = 64 * 1024
WEBHOOKS_MAX = 16


class LeaseConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    retention: str = "24h"
    """How long an ended lease stays readable."""

    idle_timeout: str = msgspec.field(name="idleTimeout", default="0s")
    """How long a lease may be without a connection before it ends; 0 is for ever, as upstream."""

    unmatched_wait: str = msgspec.field(name="unmatchedWait", default="2s")
    """How long a lease waits for a matching exporter or pool to appear before it is refused."""

    max_active_per_client: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(
        name="maxActivePerClient", default=500
    )
    """Leases of one client that hold an exporter; 0 is no limit, here and below."""

    max_waiting_per_client: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(
        name="maxWaitingPerClient", default=500
    )
    max_per_namespace: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(
        name="maxPerNamespace", default=10_000
    )
    max_duration: str = msgspec.field(name="maxDuration", default="168h")
    max_claim_priority: int = msgspec.field(name="maxClaimPriority", default=0)
    """The highest ``priority`` that clients may give their own claims."""

    preemption_grace: str = msgspec.field(name="preemptionGrace", default="1m")
    """How long a holder has after it was told that it ends for a claim."""

    preemption_after: str = msgspec.field(name="preemptionAfter", default="5m")
    """How long a preemptible claim has its targets before it may end for a higher one."""

    create_rate: Annotated[float, msgspec.Meta(ge=0)] = msgspec.field(
        name="createRate", default=20.0
    )
    """Leases per second that one client may create, after a burst of ``create_burst``."""

    create_burst: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(
        name="createBurst", default=500
    )

    def kept(self) -> timedelta:
        return durations.parse(self.retention)

    def idle(self) -> timedelta | None:
        found = durations.parse(self.idle_timeout)
        if found and found < IDLE_MIN:
            raise ValueError(f"leases.idleTimeout must be 0 or at least {durations.text(IDLE_MIN)}")
        return found or None

    def unmatched(self) -> timedelta:
        return durations.parse(self.unmatched_wait)

    def preemption(self) -> PreemptionTimes:
        grace = durations.parse(self.preemption_grace)
        return PreemptionTimes(grace=grace, held_min=durations.parse(self.preemption_after))

    def quotas(self) -> Quotas:
        rate = Rate(burst=self.create_burst, per_second=self.create_rate)
        return Quotas(
            active_max=self.max_active_per_client or None,
            waiting_max=self.max_waiting_per_client or None,
            namespace_max=self.max_per_namespace or None,
            duration_max=durations.parse(self.max_duration) or None,
            priority_max=self.max_claim_priority,
            rate=rate if self.create_rate else None,
        )


class ExporterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    stuck_after: str = msgspec.field(name="stuckAfter", default="5m")
    """How long an exporter may take to become available after a lease before it is reported."""

    def stuck(self) -> timedelta:
        return durations.parse(self.stuck_after)


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    boot_timeout: str = msgspec.field(name="bootTimeout", default="3m")
    """How long a member may take to register before it is given up."""

    start_failures_max: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(
        name="startFailuresMax", default=5
    )
    """Consecutive failures after which only one member is tried at a time."""

    instances_max: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(
        name="instancesMax", default=500
    )
    """The most instances on this machine, of all pools together."""

    def boot(self) -> timedelta:
        return durations.parse(self.boot_timeout)

    def tuning(self) -> Tuning:
        return Tuning(
            patience=replace(PATIENCE, boot_max=self.boot()),
            throttle=replace(START_THROTTLE, stop_after=self.start_failures_max),
        )


class SandboxConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mode: SandboxMode = SandboxMode.PREFERRED
    """What to do if the host does not allow every layer of an instance's sandbox."""

    first_user: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = msgspec.field(
        name="firstUser", default=0
    )
    """First of 1024 uids for instances if the service runs as root; 0 for automatic."""

    paths: tuple[str, ...] = ()
    """Files and directories of the host that instances may read."""

    def settings(self) -> SandboxSettings:
        return SandboxSettings(mode=self.mode, first_user=self.first_user, paths=self.paths)


class RetainedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    keep: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 50
    """The most directories of former targets that are kept."""

    max_age: str = msgspec.field(name="maxAge", default="720h")
    """Older directories are deleted."""

    max_size: str = msgspec.field(name="maxSize", default="100Gi")
    """The oldest directories beyond this total size are deleted, except the newest."""

    def limits(self) -> RetentionLimits:
        size = int(quantities.parse(self.max_size).amount)
        return RetentionLimits(
            keep=self.keep, age_max=durations.parse(self.max_age), bytes_max=size
        )


class BackupConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    every: str = "1h"
    """How often the state is backed up, if it changed."""

    keep: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 24
    """The most backups that are kept."""

    max_age: str = msgspec.field(name="maxAge", default="720h")
    """Older backups are deleted, except the newest."""

    def interval(self) -> timedelta:
        found = durations.parse(self.every)
        if found < timedelta(seconds=1):
            raise ValueError("backups.every must be at least 1s")
        return found

    def age(self) -> timedelta:
        return durations.parse(self.max_age)


class ConnectionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The most connections of all ports together; 0 for as many as descriptors allow."""

    per_address: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name="perAddress", default=0)
    """The most connections of one address per port; 0 for the limit of the port."""


class ExternalScalerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = False
    """Whether KEDA may ask how busy pools are, with a client certificate."""


class LabelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    hidden: tuple[str, ...] = ()
    """Exporter labels that clients see only if they ask for hidden labels."""

    deprecated: dict[str, str] = {}
    """Deprecated exporter labels, each with its replacement."""


class NamespaceRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    claim: str = "groups"
    value: str
    """The value of the claim, or an element of its list."""

    namespaces: tuple[str, ...]


class DashboardClient(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the issuer knows the dashboard as."""

    client_id: str = msgspec.field(name="clientId")
    client_secret_file: str = msgspec.field(name="clientSecretFile", default="")
    """A file with the client's secret; without it, the dashboard is a public client."""

    scopes: tuple[str, ...] = ("openid", "profile")


class OidcIssuer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    issuer: str
    """URL of the issuer; its discovery document is read from there."""

    audiences: tuple[str, ...] = ("jumpstarter-cli",)
    """Accepted token audiences."""

    client_id: str = msgspec.field(name="clientId", default="jumpstarter-cli")
    username_claim: str = msgspec.field(name="usernameClaim", default="preferred_username")
    username_prefix: str = msgspec.field(name="usernamePrefix", default="oidc:")
    """Prepended to the claim; a Client's ``spec.username`` contains both."""

    groups_claim: str = msgspec.field(name="groupsClaim", default="groups")
    groups_prefix: str = msgspec.field(name="groupsPrefix", default="oidc:")
    """Prepended to each group; bindings name the group with it."""

    ca_file: str = msgspec.field(name="caFile", default="")

    namespaces: tuple[str, ...] = ("default",)
    """With ``provisioning``: the namespaces where any user of the issuer gets a Client."""

    namespace_rules: tuple[NamespaceRule, ...] = msgspec.field(name="namespaceRules", default=())
    """With ``provisioning``: further namespaces for users with a claim or a group."""

    dashboard: DashboardClient | None = None
    """Lets users of the issuer sign in at the dashboard."""


class WebhookConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
    url: Annotated[str, msgspec.Meta(pattern="^https?://[^/]", max_length=2_000)]
    secret_ref: Annotated[str, msgspec.Meta(pattern="^[^/]+/[^/]+$")] = msgspec.field(
        name="secretRef"
    )
    """Namespace and name of the Secret whose entry ``key`` signs the messages."""

    events: tuple[str, ...] = ()
    """What is told; all events if empty."""

    namespaces: tuple[str, ...] = ()
    """The namespaces it is told about; all if empty."""

    def webhook(self) -> Webhook:
        unknown = sorted({*self.events} - {*EVENTS})
        if unknown:
            known = ", ".join(EVENTS)
            raise ValueError(f"webhooks.events: {unknown[0]!r} is unknown; known are {known}")
        namespace, _, name = self.secret_ref.partition("/")
        return Webhook(
            name=self.name,
            url=self.url,
            secret=(namespace, name),
            events=frozenset(self.events or EVENTS),
            namespaces=frozenset(self.namespaces),
        )


class AuditConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enabled: bool = True
    max_size: str = msgspec.field(name="maxSize", default="100Mi")
    """A file that would grow beyond this size is closed and a new one is started."""

    keep: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    """The most closed files that are kept."""

    max_age: str = msgspec.field(name="maxAge", default="720h")
    """Closed files older than this are deleted."""

    def rotation(self) -> Rotation:
        size = int(quantities.parse(self.max_size).amount)
        if size < AUDIT_BYTES_MIN:
            raise ValueError("audit.maxSize must be at least 64Ki")
        return Rotation(bytes_max=size, keep=self.keep, age_max=durations.parse(self.max_age))


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    leases: LeaseConfig = LeaseConfig()
    exporters: ExporterConfig = ExporterConfig()
    pools: PoolConfig = PoolConfig()
    sandbox: SandboxConfig = SandboxConfig()
    retained: RetainedConfig = RetainedConfig()
    backups: BackupConfig = BackupConfig()
    labels: LabelConfig = LabelConfig()
    connections: ConnectionConfig = ConnectionConfig()
    external_scaler: ExternalScalerConfig = msgspec.field(
        name="externalScaler", default=ExternalScalerConfig()
    )
    audit: AuditConfig = AuditConfig()
    webhooks: Annotated[tuple[WebhookConfig, ...], msgspec.Meta(max_length=WEBHOOKS_MAX)] = ()
    client_ca_file: str = msgspec.field(name="clientCAFile", default="")
    """Further CAs whose client certificates are accepted, besides those of the data directory."""

    oidc: tuple[OidcIssuer, ...] = ()
    provisioning: bool = False
    """Whether an unknown user of an OIDC issuer gets a Client at the first call."""

    def told(self) -> tuple[Webhook, ...]:
        found = tuple(webhook.webhook() for webhook in self.webhooks)
        if len({webhook.name for webhook in found}) < len(found):
            raise ValueError("webhooks: each must have a name of its own")
        return found


def load(path: Path | None) -> Config:
    """The settings in ``path``, or the defaults; raises ``BadRequest`` naming the field."""
    if path is None:
        return Config()
    try:
        found = yaml.load(path.read_bytes()) or {}
        config = msgspec.convert(found, Config)
        config.leases.kept()
        config.leases.idle()
        config.leases.unmatched()
        config.leases.quotas()
        config.leases.preemption()
        config.exporters.stuck()
        config.backups.interval()
        config.backups.age()
        config.audit.rotation()
        config.pools.boot()
        config.told()
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.ValidationError, ValueError) as error:
        raise BadRequest(f"{path}: {error}") from None
    return config
