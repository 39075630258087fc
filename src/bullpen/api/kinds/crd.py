"""CustomResourceDefinition: the kind by which a cluster, or our server, lists our kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from bullpen.api.fields import Kind, Struct, about
from bullpen.api.meta import ObjectMeta
from bullpen.api.resource import resource


@dataclass(frozen=True, slots=True, kw_only=True)
class CrdNames(Struct):
    """What the kind is called."""

    plural: str = field(metadata=about("Name in paths.", required=True))
    singular: str = field(default="", metadata=about("Name for one object."))
    short_names: tuple[str, ...] = field(
        default=(), metadata=about("Abbreviations.", list_type="atomic")
    )
    kind: str = field(metadata=about("Name in objects, in CamelCase.", required=True))
    list_kind: str = field(default="", metadata=about("Name of lists, in CamelCase."))
    categories: tuple[str, ...] = field(
        default=(), metadata=about("Groups of kinds it is listed with.", list_type="atomic")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CrdColumn(Struct):
    """A column in tables."""

    name: str = field(metadata=about("Heading.", required=True))
    type: str = field(metadata=about("An OpenAPI type, or date.", required=True))
    format: str = field(default="", metadata=about("An OpenAPI format."))
    description: str = field(default="", metadata=about("What it shows."))
    priority: int = field(
        default=0, metadata=about("Above 0 only wide tables show it.", format="int32")
    )
    json_path: str = field(metadata=about("Where the value is.", required=True, name="jsonPath"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CrdVersion(Struct):
    """One version of the kind."""

    name: str = field(metadata=about("Such as v1alpha1.", required=True))
    served: bool = field(metadata=about("Whether it can be used.", required=True))
    storage: bool = field(metadata=about("Whether objects are stored so.", required=True))
    deprecated: bool = field(default=False, metadata=about("Whether users are warned."))
    schema: Mapping[str, object] = field(
        default_factory=dict, metadata=about("What objects look like.")
    )
    subresources: Mapping[str, object] = field(
        default_factory=dict, metadata=about("The status and scale subresources.")
    )
    additional_printer_columns: tuple[CrdColumn, ...] = field(
        default=(), metadata=about("Columns in tables besides the name.", list_type="atomic")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CrdSpec(Struct):
    """How the kind is served."""

    group: str = field(metadata=about("API group.", required=True))
    names: CrdNames = field(metadata=about("What the kind is called.", required=True))
    scope: str = field(
        metadata=about("Cluster or Namespaced.", required=True, enum=["Cluster", "Namespaced"])
    )
    versions: tuple[CrdVersion, ...] = field(
        metadata=about("All versions.", required=True, list_keys=("name",))
    )
    conversion: Mapping[str, object] = field(
        default_factory=dict, metadata=about("How versions are converted.")
    )
    preserve_unknown_fields: bool = field(default=False, metadata=about("Obsolete; must be false."))


@dataclass(frozen=True, slots=True, kw_only=True)
class CrdCondition(Struct):
    """One aspect of the state of the definition."""

    type: str = field(metadata=about("Established, NamesAccepted and so on.", required=True))
    status: str = field(metadata=about("True, False or Unknown.", required=True))
    last_transition_time: datetime | None = field(
        default=None, metadata=about("When the status last changed.")
    )
    reason: str = field(default="", metadata=about("Why it changed, in CamelCase."))
    message: str = field(default="", metadata=about("Human-readable message."))


@dataclass(frozen=True, slots=True, kw_only=True)
class CrdStatus(Struct):
    """Whether the kind is served."""

    conditions: tuple[CrdCondition, ...] = field(
        default=(), metadata=about("Latest observations.", list_keys=("type",))
    )
    accepted_names: CrdNames | None = field(
        default=None, metadata=about("The names that are in use.")
    )
    stored_versions: tuple[str, ...] = field(
        default=(), metadata=about("Versions objects were ever stored in.", list_type="atomic")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomResourceDefinition(Kind):
    """Says that a kind exists and what its objects look like."""

    api_version: ClassVar[str] = "apiextensions.k8s.io/v1"
    kind: ClassVar[str] = "CustomResourceDefinition"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: CrdSpec = field(metadata=about("How the kind is served.", required=True))
    status: CrdStatus = field(default=CrdStatus(), metadata=about("Whether the kind is served."))


RESOURCES = (
    resource(
        CustomResourceDefinition,
        "customresourcedefinitions",
        custom=False,
        namespaced=False,
        read_only=True,
        # No status subresource, unlike Kubernetes: the definitions of a server
        # that implements them are written once, with their status.
        short_names=("crd", "crds"),
        categories=("api-extensions",),
    ),
)
