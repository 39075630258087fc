"""DevicePool: devices that no Exporter shows, such as slots of hosts, licences and partitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import ClassVar

from bullpen.api.admission_rules import (
    AMOUNT_MAX,
    AMOUNT_MAX_TEXT,
    AdmissionRule,
    amount_rules,
    each,
)
from bullpen.api.columns import Column
from bullpen.api.fields import Kind, Rule, Struct, about
from bullpen.api.kinds.deviceclass import GROUP_VERSION
from bullpen.api.meta import ObjectMeta
from bullpen.api.paths import Document, shown, walk
from bullpen.api.resource import resource
from bullpen.errors import Cause
from bullpen.kit import quantities

DEVICES_MAX = 128
ATTRIBUTES_MAX = 32
COUNTERS_MAX = 256
TAINTS_MAX = 16
VALUES_MAX = 64
ALLOCATIONS_MAX = 1024

ONE_VALUE = "give exactly one of string, int, bool, version, quantity and strings"

_QUANTITY = {"pattern": quantities.PATTERN}


class TaintEffect(StrEnum):
    NONE = "None"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeValue(Struct):
    """The value of an attribute: exactly one of its fields."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="[has(self.string), has(self.int), has(self.bool), has(self.version),"
            " has(self.quantity), has(self.strings)].filter(given, given).size() == 1",
            message=ONE_VALUE,
        ),
    )

    string: str | None = field(default=None, metadata=about("A text.", max_length=256))
    int_: int | None = field(default=None, metadata=about("A whole number."))
    bool_: bool | None = field(default=None, metadata=about("True or false."))
    version: str | None = field(
        default=None, metadata=about("A semantic version such as 1.2.3.", max_length=64)
    )
    quantity: str | None = field(
        default=None,
        metadata=about(
            "An amount such as 10G, compared in base units.", pattern=quantities.PATTERN
        ),
    )
    strings: tuple[str, ...] | None = field(
        default=None,
        metadata=about(
            "Several texts; the attribute matches each of them.",
            list_type="atomic",
            max_items=VALUES_MAX,
            items={"maxLength": 256},
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTaint(Struct):
    """Keeps requests away that do not tolerate it."""

    key: str = field(metadata=about("Key of the taint.", required=True, min_length=1))
    value: str = field(default="", metadata=about("Value of the taint."))
    effect: TaintEffect = field(
        default=TaintEffect.NO_SCHEDULE,
        metadata=about("What it does to requests without a toleration; NoSchedule by default."),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDevice(Struct):
    """One device of the pool."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!self.name.matches('^new-[0-9]+$')",
            message="new-0 and so on are names of devices that an ExporterSet could start",
            field_path=".name",
        ),
    )

    name: str = field(
        metadata=about("Its name in the pool.", required=True, min_length=1, max_length=63)
    )
    attributes: Mapping[str, AttributeValue] = field(
        default_factory=dict,
        metadata=about(
            "Its attributes; they take precedence over those of the pool.",
            max_properties=ATTRIBUTES_MAX,
        ),
    )
    capacity: Mapping[str, int | str] = field(
        default_factory=dict,
        metadata=about("What it offers.", items=_QUANTITY, max_properties=ATTRIBUTES_MAX),
    )
    consumes_counters: Mapping[str, int | str] = field(
        default_factory=dict,
        metadata=about(
            "What it takes from the shared counters of the pool while it is in use.",
            items=_QUANTITY,
            max_properties=ATTRIBUTES_MAX,
        ),
    )
    taints: tuple[DeviceTaint, ...] = field(
        default=(),
        metadata=about("Its taints.", list_type="atomic", max_items=TAINTS_MAX),
    )
    allow_multiple_allocations: bool = field(
        default=False,
        metadata=about("Several requests may share it, as long as its capacity suffices."),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePoolSpec(Struct):
    """The devices of the pool."""

    driver: str = field(default="", metadata=about("The driver of its devices.", max_length=253))
    attributes: Mapping[str, AttributeValue] = field(
        default_factory=dict,
        metadata=about("Attributes of all its devices.", max_properties=ATTRIBUTES_MAX),
    )
    shared_counters: Mapping[str, int | str] = field(
        default_factory=dict,
        metadata=about(
            "Amounts that its devices share, such as slots of a host.",
            items=_QUANTITY,
            max_properties=COUNTERS_MAX,
        ),
    )
    devices: tuple[PoolDevice, ...] = field(
        default=(), metadata=about("The devices.", list_keys=("name",), max_items=DEVICES_MAX)
    )
    incomplete: bool = field(
        default=False,
        metadata=about("More devices are about to be published; a request for All waits."),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAllocation(Struct):
    """A device that a claim has, or its share of one."""

    device: str = field(metadata=about("The device.", required=True))
    claim: str = field(metadata=about("The DeviceClaim that has it.", required=True))
    claim_uid: str = field(metadata=about("The uid of the claim.", required=True))
    request: str = field(metadata=about("The request it serves.", required=True))
    alternative: str = field(default="", metadata=about("The alternative that was chosen."))
    share: Mapping[str, int | str] = field(
        default_factory=dict,
        metadata=about("What the claim has of a shareable device; empty for all of it."),
    )
    members: int = field(
        metadata=about("How many devices the claim gets, exporters included.", required=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePoolStatus(Struct):
    """Who has the devices."""

    allocations: tuple[PoolAllocation, ...] = field(
        default=(),
        metadata=about(
            "The devices that claims have.", list_type="atomic", max_items=ALLOCATIONS_MAX
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePool(Kind):
    """Devices that no Exporter shows: slots of hosts, licences, partitions of devices."""

    api_version: ClassVar[str] = GROUP_VERSION
    kind: ClassVar[str] = "DevicePool"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: DevicePoolSpec = field(metadata=about("The devices of the pool.", required=True))
    status: DevicePoolStatus = field(
        default=DevicePoolStatus(), metadata=about("Who has the devices.")
    )


def devicepool_causes(document: Document, old: Document | None) -> Iterator[Cause]:
    """Checks of a pool beyond its schema: amounts, and counters that do not exist."""
    spec = document["spec"]
    known = spec.get("sharedCounters", {})
    yield from _attribute_causes(document, "spec", "attributes")
    yield from _attribute_causes(document, "spec", "devices", "*", "attributes")
    yield from amount_causes(document, "spec", "sharedCounters")
    yield from amount_causes(document, "spec", "devices", "*", "capacity")
    yield from amount_causes(document, "spec", "devices", "*", "consumesCounters")
    for path, drawn in walk(document, ("spec", "devices", "*", "consumesCounters")):
        for counter in drawn:
            if counter not in known:
                names = ", ".join(sorted(known)[:10]) or "none"
                message = f"Not found: {shown(counter)}: spec.sharedCounters has {names}"
                yield Cause(
                    field=f"{path}[{counter}]", message=message, reason="FieldValueNotFound"
                )


def _attribute_causes(document: Document, *pattern: str) -> Iterator[Cause]:
    """The rule of ``AttributeValue`` again: rules inside maps are evaluated only in a cluster."""
    for path, attributes in walk(document, pattern):
        for name, value in attributes.items():
            if sum(key in value for key in _VALUES) != 1:
                yield Cause(field=f"{path}[{name}]", message=f"Invalid value: {ONE_VALUE}")


_VALUES = ("string", "int", "bool", "version", "quantity", "strings")


def _amount_problem(amount: Decimal) -> str:
    if amount < 0:
        return "must not be negative"
    return "" if amount <= AMOUNT_MAX else f"must not be larger than {AMOUNT_MAX_TEXT}"


def amount_causes(document: Document, *pattern: str) -> Iterator[Cause]:
    """The amounts in each map at ``pattern`` that are no quantity, negative or too large."""
    for path, amounts in walk(document, pattern):
        for name, written in amounts.items():
            try:
                problem = _amount_problem(quantities.parse(written).amount)
            except ValueError as error:
                problem = str(error)
            if problem:
                message = f"Invalid value: {shown(written)}: {problem}"
                yield Cause(field=f"{path}[{name}]", message=message)


_COUNTERS = each(
    "spec.devices.*.consumesCounters",
    lambda drawn: (
        f"{drawn}.all(k, has(object.spec.sharedCounters) && k in object.spec.sharedCounters)"
    ),
)

RESOURCES = (
    resource(
        DevicePool,
        "devicepools",
        status=True,
        columns=(Column(name="Driver", path=".spec.driver"),),
        checks=(devicepool_causes,),
        admission=(
            *amount_rules(
                "spec.sharedCounters", "spec.devices.*.capacity", "spec.devices.*.consumesCounters"
            ),
            AdmissionRule(
                expression=_COUNTERS,
                message="spec.devices.*.consumesCounters: must name counters of"
                " spec.sharedCounters",
            ),
        ),
    ),
)
