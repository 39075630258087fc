"""What exporters export: drivers, targets and metadata, as pools and lasting targets write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from bullpen.api.fields import Rule, Struct, about

TARGETS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver(Struct):
    """One entry of the exporter's export map."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(rule="has(self.name) && size(self.name) > 0", message="name is required"),
        Rule(rule="has(self.type) || has(self.ref)", message="one of type or ref is required"),
        Rule(rule="!(has(self.type) && has(self.ref))", message="type and ref exclude each other"),
        Rule(rule="!has(self.ref) || !has(self.config)", message="a ref entry has no config"),
    )

    name: str = field(metadata=about("Key in the export map.", required=True))
    type: str = field(
        default="", metadata=about("Dotted name of the driver's Python class.", min_length=1)
    )
    ref: str = field(
        default="",
        metadata=about(
            "Dotted path of a child driver to surface here.", pattern=r"^[^.]+([.][^.]+)*$"
        ),
    )
    config: Mapping[str, object] = field(
        default_factory=dict, metadata=about("Settings the driver understands.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateMetadata(Struct):
    """Metadata of the exporters."""

    labels: Mapping[str, str] = field(
        default_factory=dict, metadata=about("Labels; they must satisfy the set's selector.")
    )
    annotations: Mapping[str, str] = field(default_factory=dict, metadata=about("Annotations."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(Struct):
    """One of several targets behind an exporter."""

    name: str = field(
        metadata=about(
            "Key in the export map; the drivers of the target are below it.",
            required=True,
            pattern="^[A-Za-z0-9]([-_A-Za-z0-9]{0,61}[A-Za-z0-9])?$",
        )
    )
    parameters: Mapping[str, object] = field(
        default_factory=dict, metadata=about("Settings, merged deeply over those of the set.")
    )
    drivers: tuple[Driver, ...] = field(
        default=(),
        metadata=about(
            "The drivers of the target, by name; a ref begins below the target.",
            list_keys=("name",),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSpec(Struct):
    """What the exporters export."""

    drivers: tuple[Driver, ...] = field(
        default=(), metadata=about("The drivers, by name.", list_keys=("name",))
    )
    targets: tuple[Target, ...] = field(
        default=(),
        metadata=about(
            "Several targets behind one exporter, which are leased as one.",
            list_keys=("name",),
            max_items=TARGETS_MAX,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Template(Struct):
    """What the set's exporters look like."""

    metadata: TemplateMetadata = field(
        default=TemplateMetadata(), metadata=about("Metadata of the exporters.")
    )
    spec: TemplateSpec = field(default=TemplateSpec(), metadata=about("What the exporters export."))
