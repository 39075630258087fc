"""DeviceClass: a name for devices of one kind, for claims to ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from bullpen.api.admission_rules import AdmissionRule, selector_rules
from bullpen.api.columns import Column
from bullpen.api.device_cel import checked_expression
from bullpen.api.device_selectors import EXPRESSION_BYTES_MAX
from bullpen.api.fields import Kind, Rule, Struct, about
from bullpen.api.meta import LabelSelector, ObjectMeta
from bullpen.api.metadata_checks import selector_causes
from bullpen.api.paths import Document, walk
from bullpen.api.resource import resource
from bullpen.errors import BadRequest, Cause

GROUP_VERSION = "device.jumpstarter.dev/v1alpha1"

SELECTORS_MAX = 32

DEFAULT_COST = 1
"""What an hour of an exporter counts for in the fair share if no class says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CelSelector(Struct):
    """A condition on one device, in CEL."""

    expression: str = field(
        metadata=about(
            "True for devices that match, such as device.slots > 3 && site == 'brno'.",
            required=True,
            min_length=1,
            max_length=EXPRESSION_BYTES_MAX,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSelector(Struct):
    """One condition on a device: labels or a CEL expression."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(rule="has(self.cel) != has(self.labels)", message="give either cel or labels"),
    )

    cel: CelSelector | None = field(default=None, metadata=about("A CEL expression."))
    labels: LabelSelector | None = field(
        default=None, metadata=about("Labels of the exporter, or attributes of the device.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClassSpec(Struct):
    """Which devices the class has."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="(has(self.selectors) && size(self.selectors) > 0) || has(self.classSelector)",
            message="a class needs selectors, or a classSelector if it is a group of classes",
        ),
    )

    selectors: tuple[DeviceSelector, ...] = field(
        default=(),
        metadata=about(
            "Conditions on its devices; all must hold. In a group they narrow its classes.",
            list_type="atomic",
            max_items=SELECTORS_MAX,
        ),
    )
    class_selector: LabelSelector | None = field(
        default=None,
        metadata=about(
            "Makes the class a group: the devices of all classes with these labels that are no"
            " groups themselves."
        ),
    )
    cost: int = field(
        default=DEFAULT_COST,
        metadata=about(
            "What an hour of one device counts for in the fair share.",
            minimum=0,
            maximum=1_000_000,
            defaulted=True,
        ),
    )
    config: Mapping[str, object] = field(
        default_factory=dict,
        metadata=about(
            "Settings for users of the devices; copied to the status of a claim that gets some."
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass(Kind):
    """A name for devices of one kind, or for a group of such classes."""

    api_version: ClassVar[str] = GROUP_VERSION
    kind: ClassVar[str] = "DeviceClass"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: DeviceClassSpec = field(metadata=about("Which devices the class has.", required=True))


def deviceclass_causes(document: Document, old: Document | None) -> Iterator[Cause]:
    """Checks of a class beyond its schema."""
    yield from device_selector_causes(document, "spec", "selectors", "*")
    yield from selector_causes(document, "spec", "classSelector")


def device_selector_causes(document: Document, *pattern: str) -> Iterator[Cause]:
    """The errors in each device selector at ``pattern``; a bad expression is refused here."""
    for path, text in walk(document, (*pattern, "cel", "expression")):
        cause = _expression_cause(path, text)
        if cause is not None:
            yield cause
    yield from selector_causes(document, *pattern, "labels")


def _expression_cause(path: str, text: Any) -> Cause | None:
    try:
        checked_expression(text)
    except BadRequest as error:
        return Cause(field=path, message=f"Invalid value: {error.message}")
    return None


def device_selector_rules(path: str) -> Iterator[AdmissionRule]:
    """``device_selector_causes`` for clusters, which cannot compile an expression in another.

    There, the controller reports one that does not compile in a condition.
    """
    yield from selector_rules(f"{path}.*.labels")


RESOURCES = (
    resource(
        DeviceClass,
        "deviceclasses",
        namespaced=False,
        columns=(Column(name="Cost", path=".spec.cost", type="integer"),),
        checks=(deviceclass_causes,),
        admission=(*device_selector_rules("spec.selectors"), *selector_rules("spec.classSelector")),
    ),
)
