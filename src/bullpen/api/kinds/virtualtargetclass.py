"""VirtualTargetClass: a profile of the backend that creates virtual targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import ClassVar

from bullpen.api.columns import Column
from bullpen.api.fields import Kind, Struct, about
from bullpen.api.meta import Condition, LocalObjectReference, ObjectMeta
from bullpen.api.resource import resource
from bullpen.kit import quantities

GROUP_VERSION = "virtualtarget.jumpstarter.dev/v1alpha1"


class BindingMode(StrEnum):
    IMMEDIATE = "Immediate"
    WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"


class ReclaimPolicy(StrEnum):
    DELETE = "Delete"
    RETAIN = "Retain"


class CredentialRotation(StrEnum):
    """What happens to the members of a pool when the class's Secret or ConfigMap changes."""

    REPLACE = "Replace"
    IN_PLACE = "InPlace"
    LEAVE = "Leave"


class PullPolicy(StrEnum):
    ALWAYS = "Always"
    NEVER = "Never"
    IF_NOT_PRESENT = "IfNotPresent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration(Struct):
    """A taint that is tolerated on the instance's node."""

    key: str = field(default="", metadata=about("Key of the taint; empty with Exists means all."))
    operator: str = field(default="", metadata=about("Exists or Equal, which is the default."))
    value: str = field(default="", metadata=about("Value of the taint, for Equal."))
    effect: str = field(
        default="", metadata=about("NoSchedule, PreferNoSchedule or NoExecute; empty means all.")
    )
    toleration_seconds: int | None = field(
        default=None, metadata=about("How long a NoExecute taint is tolerated.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceClaim(Struct):
    """A claim of the Pod that the container uses."""

    name: str = field(metadata=about("Name of the entry in the Pod's claims.", required=True))
    request: str = field(default="", metadata=about("Which request of the claim; empty for all."))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequirements(Struct):
    """What the instance needs and may use at most."""

    claims: tuple[ResourceClaim, ...] = field(
        default=(), metadata=about("Claims the container uses.", list_keys=("name",))
    )
    limits: Mapping[str, int | str] = field(
        default_factory=dict,
        metadata=about(
            "Maximum resources of the container.", items={"pattern": quantities.PATTERN}
        ),
    )
    requests: Mapping[str, int | str] = field(
        default_factory=dict,
        metadata=about(
            "Resources reserved for the container.", items={"pattern": quantities.PATTERN}
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling(Struct):
    """Where instances may run and what they get there."""

    node_selector: Mapping[str, str] = field(
        default_factory=dict, metadata=about("Labels the node must have.")
    )
    affinity: Mapping[str, object] = field(
        default_factory=dict,
        metadata=about("Nodes and Pods to be near to or away from, as in a Pod."),
    )
    tolerations: tuple[Toleration, ...] = field(
        default=(), metadata=about("Taints the node may have.", list_type="atomic")
    )
    resources: ResourceRequirements | None = field(
        default=None, metadata=about("Resources of the runtime container.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CABundleReference(Struct):
    """A key in a ConfigMap that holds PEM certificates."""

    name: str = field(metadata=about("Name of the ConfigMap.", required=True, min_length=1))
    key: str = field(
        default="ca-bundle.crt", metadata=about("Key in the ConfigMap.", defaulted=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Image(Struct):
    """A container image."""

    image: str = field(default="", metadata=about("Reference such as quay.io/org/repo:tag."))
    image_pull_policy: PullPolicy | None = field(
        default=None, metadata=about("When to pull the image.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Images(Struct):
    """Images to use instead of the provisioner's own."""

    exporter: Image | None = field(default=None, metadata=about("For the exporter."))
    runtime: Image | None = field(default=None, metadata=about("For the target's runtime."))
    pull_secrets: tuple[LocalObjectReference, ...] = field(
        default=(),
        metadata=about("Secrets to pull the images with.", list_type="atomic"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualTargetClassSpec(Struct):
    """The backend and how it is used."""

    provisioner: str = field(
        metadata=about(
            "Who makes the targets, such as qemu.jumpstarter.dev.", required=True, min_length=1
        )
    )
    credentials_secret_ref: LocalObjectReference | None = field(
        default=None, metadata=about("Secret with the backend's credentials.")
    )
    credential_rotation: CredentialRotation = field(
        default=CredentialRotation.REPLACE,
        metadata=about(
            "What members of pools do when the contents of the Secret or of the CA bundle change:"
            " Replace those without a lease, write the Secret's files InPlace, or Leave them as"
            " they are until they are replaced for another reason.",
            defaulted=True,
        ),
    )
    provider_config_ref: LocalObjectReference | None = field(
        default=None,
        metadata=about(
            "ProviderConfig with the account, project or hosts to use, for provisioners of machines"
            " that a provider's API makes."
        ),
    )
    parameters: Mapping[str, object] = field(
        default_factory=dict, metadata=about("Settings the provisioner understands.")
    )
    binding_mode: BindingMode = field(
        default=BindingMode.IMMEDIATE,
        metadata=about("Keep instances warm, or start one when a lease waits.", defaulted=True),
    )
    reclaim_policy: ReclaimPolicy = field(
        default=ReclaimPolicy.DELETE,
        metadata=about("Whether a used target is destroyed or kept for a look.", defaulted=True),
    )
    boot_timeout: timedelta = field(
        default=timedelta(0),
        metadata=about(
            "How long an instance may take to register before it is replaced; 0 for the"
            " service's own limit."
        ),
    )
    scheduling: Scheduling | None = field(
        default=None, metadata=about("Where instances may run and what they get there.")
    )
    ca_bundle_config_map_ref: CABundleReference | None = field(
        default=None, metadata=about("Certificates that instances trust.")
    )
    images: Images | None = field(
        default=None, metadata=about("Images to use instead of the provisioner's own.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualTargetClassStatus(Struct):
    """What is known about the backend."""

    conditions: tuple[Condition, ...] = field(
        default=(), metadata=about("Latest observations: Sandboxed.", list_keys=("type",))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualTargetClass(Kind):
    """A profile of the backend that makes virtual targets."""

    api_version: ClassVar[str] = GROUP_VERSION
    kind: ClassVar[str] = "VirtualTargetClass"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: VirtualTargetClassSpec = field(
        metadata=about("The backend and how it is used.", required=True)
    )
    status: VirtualTargetClassStatus = field(
        default=VirtualTargetClassStatus(), metadata=about("What is known about the backend.")
    )


RESOURCES = (
    resource(
        VirtualTargetClass,
        "virtualtargetclasses",
        status=True,
        columns=(
            Column(name="Provisioner", path=".spec.provisioner"),
            Column(name="Binding", path=".spec.bindingMode"),
        ),
    ),
)
