"""PersistentVolumeClaim: the volume of a lasting disk in a cluster. The embedded home has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from bullpen.api import schema
from bullpen.api.fields import Kind, Struct, about
from bullpen.api.meta import ObjectMeta
from bullpen.api.resource import Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimStatus(Struct):
    """How the volume is, as the cluster last said."""

    phase: str = field(default="", metadata=about("Pending, Bound or Lost."))
    capacity: Mapping[str, str] = field(
        default_factory=dict, metadata=about("What the volume has.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistentVolumeClaim(Kind):
    """A request for a volume."""

    api_version: ClassVar[str] = "v1"
    kind: ClassVar[str] = "PersistentVolumeClaim"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: Mapping[str, object] = field(
        default_factory=dict, metadata=about("The volume that is wanted.")
    )
    status: ClaimStatus = field(default=ClaimStatus(), metadata=about("How the volume is."))


RESOURCE = Resource(
    group="",
    version="v1",
    kind=PersistentVolumeClaim.kind,
    plural="persistentvolumeclaims",
    singular="persistentvolumeclaim",
    short_names=("pvc",),
    custom=False,
    versioned_updates=False,
    partial=True,
    status=True,
    schema=schema.of(PersistentVolumeClaim),
    value=PersistentVolumeClaim,
)
