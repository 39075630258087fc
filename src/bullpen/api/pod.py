"""Pod: an instance in a cluster.

Only our own Pods are read, and only the fields that describe their state: the rest is
preserved unchanged. The embedded home does not serve this kind; ``CLUSTER_RESOURCES`` are
the kinds of a home that does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from bullpen.api import apiservice, claim, reviews, schema
from bullpen.api.fields import Kind, Struct, about
from bullpen.api.meta import ObjectMeta
from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES, Resources

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "bullpen"

LEADER = "bullpen.dev/leader"
"""Label of the Pod whose process leads; its value is the name of the leadership."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Struct):
    """Why a container has not started."""

    reason: str = field(default="", metadata=about("Why, in CamelCase."))
    message: str = field(default="", metadata=about("Human-readable message."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminated(Struct):
    """How a container ended."""

    exit_code: int = field(default=0, metadata=about("What its process returned."))
    signal: int = field(default=0, metadata=about("What killed its process, if anything."))
    reason: str = field(default="", metadata=about("Why, in CamelCase."))
    message: str = field(default="", metadata=about("What it left in its termination log."))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState(Struct):
    """What a container does; one of these, or nothing is known."""

    waiting: Waiting | None = field(default=None, metadata=about("It has not started."))
    running: Mapping[str, object] | None = field(default=None, metadata=about("It runs."))
    terminated: Terminated | None = field(default=None, metadata=about("It ended."))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStatus(Struct):
    """One container of a Pod, as its node last said."""

    name: str = field(default="", metadata=about("Name of the container."))
    image: str = field(default="", metadata=about("Its image."))
    state: ContainerState = field(
        default=ContainerState(), metadata=about("What the container does.")
    )
    started: bool = field(default=False, metadata=about("Whether its startup probe has succeeded."))
    restart_count: int = field(default=0, metadata=about("How often it was started again."))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCondition(Struct):
    """One aspect of the state of a Pod."""

    type: str = field(metadata=about("What the condition is about.", required=True))
    status: str = field(metadata=about("True, False or Unknown.", required=True))
    reason: str = field(default="", metadata=about("Why, in CamelCase."))
    message: str = field(default="", metadata=about("Human-readable message."))
    last_transition_time: datetime | None = field(
        default=None, metadata=about("When the status last changed.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStatus(Struct):
    """How a Pod is, as its node last said."""

    phase: str = field(
        default="", metadata=about("Pending, Running, Succeeded, Failed or Unknown.")
    )
    reason: str = field(default="", metadata=about("Why, in CamelCase."))
    message: str = field(default="", metadata=about("Human-readable message."))
    pod_ip: str = field(default="", metadata=about("Its address in the cluster.", name="podIP"))
    conditions: tuple[PodCondition, ...] = field(
        default=(), metadata=about("Latest observations.", list_keys=("type",))
    )
    init_container_statuses: tuple[ContainerStatus, ...] = field(
        default=(), metadata=about("What runs before, and sidecars.", list_type="atomic")
    )
    container_statuses: tuple[ContainerStatus, ...] = field(
        default=(), metadata=about("The containers.", list_type="atomic")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod(Kind):
    """Containers that run together on a node."""

    api_version: ClassVar[str] = "v1"
    kind: ClassVar[str] = "Pod"
    selected: ClassVar[str] = f"{MANAGED_BY}={MANAGER}"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: Mapping[str, object] = field(
        default_factory=dict, metadata=about("What to run, and where.")
    )
    status: PodStatus = field(default=PodStatus(), metadata=about("How the Pod is."))


CLUSTER_RESOURCES = Resources(
    (
        *RESOURCES,
        Resource(
            group="",
            version="v1",
            kind=Pod.kind,
            plural="pods",
            singular="pod",
            short_names=("po",),
            custom=False,
            versioned_updates=False,
            partial=True,
            status=True,
            schema=schema.of(Pod),
            value=Pod,
        ),
        *reviews.RESOURCES,
        apiservice.RESOURCE,
        claim.RESOURCE,
    )
)
"""The kinds in a cluster: those the embedded home serves, and what only clusters have."""
