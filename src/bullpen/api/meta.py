"""What all objects share: metadata, conditions, references, label selectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from bullpen.api.fields import Struct, about
from bullpen.errors import BadRequest
from bullpen.kit.selectors import Operator, Selector, from_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerReference(Struct):
    """An object in the same namespace whose deletion takes this one along."""

    atomic: ClassVar[bool] = True

    api_version: str = field(metadata=about("API version of the owner.", required=True))
    kind: str = field(metadata=about("Kind of the owner.", required=True))
    name: str = field(metadata=about("Name of the owner.", required=True))
    uid: str = field(metadata=about("UID of the owner.", required=True))
    controller: bool = field(
        default=False, metadata=about("Whether the owner is the managing controller.")
    )
    block_owner_deletion: bool = field(
        default=False,
        metadata=about("Whether a foreground deletion of the owner waits for this object."),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta(Struct):
    """Metadata that all objects have."""

    name: str = field(
        default="", metadata=about("Name, unique among objects of this kind in the namespace.")
    )
    generate_name: str = field(
        default="", metadata=about("Prefix to which the server adds a tail, if there is no name.")
    )
    namespace: str = field(default="", metadata=about("Space within which the name is unique."))
    self_link: str = field(default="", metadata=about("Obsolete; never set."))
    uid: str = field(
        default="", metadata=about("Identity of this object, different from any other ever.")
    )
    resource_version: str = field(
        default="", metadata=about("Revision at which the object last changed; opaque.")
    )
    generation: int = field(
        default=0, metadata=about("Counts the changes of the desired state; set by the server.")
    )
    creation_timestamp: datetime | None = field(
        default=None, metadata=about("When the object was created; set by the server.")
    )
    deletion_timestamp: datetime | None = field(
        default=None, metadata=about("When deletion was asked for; set by the server.")
    )
    deletion_grace_period_seconds: int | None = field(
        default=None, metadata=about("Seconds from the request for deletion to the removal.")
    )
    labels: Mapping[str, str] = field(
        default_factory=dict, metadata=about("Keys and values to select and group objects by.")
    )
    annotations: Mapping[str, str] = field(
        default_factory=dict, metadata=about("Keys and values for tools; never selected by.")
    )
    owner_references: tuple[OwnerReference, ...] = field(
        default=(),
        metadata=about("Objects this one depends on. It goes when all have.", list_keys=("uid",)),
    )
    finalizers: tuple[str, ...] = field(
        default=(),
        metadata=about("Parties that must clean up before the object goes.", list_type="set"),
    )
    managed_fields: tuple[Mapping[str, object], ...] = field(
        default=(),
        metadata=about("Which manager set which fields; kept by the server.", list_type="atomic"),
    )


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition(Struct):
    """One aspect of the observed state, with a reason for programs and a message for people."""

    type: str = field(
        metadata=about(
            "What the condition is about, in CamelCase.",
            required=True,
            max_length=316,
            pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
            r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
        )
    )
    status: ConditionStatus = field(metadata=about("Whether the condition holds.", required=True))
    observed_generation: int = field(
        default=0,
        # `jmp admin get leases` needs the key to be there.
        metadata=about("The metadata.generation that was observed.", minimum=0, defaulted=True),
    )
    last_transition_time: datetime = field(
        metadata=about("When the status last changed.", required=True)
    )
    reason: str = field(
        metadata=about(
            "Why the status last changed, in CamelCase.",
            required=True,
            min_length=1,
            max_length=1024,
            pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        )
    )
    message: str = field(
        metadata=about("Human-readable message; may be empty.", required=True, max_length=32768)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalObjectReference(Struct):
    """An object in the same namespace, by name."""

    atomic: ClassVar[bool] = True

    name: str = field(default="", metadata=about("Name of the object.", defaulted=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSelectorRequirement(Struct):
    """A key, an operator, and the values they relate to."""

    key: str = field(metadata=about("The label key the requirement is about.", required=True))
    operator: str = field(metadata=about("In, NotIn, Exists or DoesNotExist.", required=True))
    values: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "At least one for In and NotIn, none for Exists and DoesNotExist.", list_type="atomic"
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSelector(Struct):
    """Selects objects by their labels; all requirements must hold. Empty selects everything."""

    atomic: ClassVar[bool] = True

    match_labels: Mapping[str, str] = field(
        default_factory=dict, metadata=about("Labels that must be present with these values.")
    )
    match_expressions: tuple[LabelSelectorRequirement, ...] = field(
        default=(), metadata=about("Further requirements.", list_type="atomic")
    )

    def selector(self) -> Selector:
        """The same as a ``Selector``, which can be matched.

        Raises ``BadRequest`` for an invalid requirement, which documents that passed validation
        never contain.
        """
        return from_parts(
            self.match_labels,
            tuple((item.key, item.operator, item.values) for item in self.match_expressions),
        )


_EXPRESSIONS = {
    Operator.IN: "In",
    Operator.NOT_IN: "NotIn",
    Operator.EXISTS: "Exists",
    Operator.DOES_NOT_EXIST: "DoesNotExist",
}


def label_selector(selector: Selector) -> LabelSelector:
    """The object form of ``selector``, which renders to the same text.

    All values one key must not have become one requirement, as in Jumpstarter. Raises
    ``BadRequest`` for what the object form cannot express: two different values for one key, or
    a comparison.
    """
    match_labels: dict[str, str] = {}
    expressions: dict[tuple[str, str, int], tuple[str, ...]] = {}
    for index, item in enumerate(selector.requirements):
        if item.operator is Operator.EQUALS:
            if match_labels.setdefault(item.key, item.values[0]) != item.values[0]:
                raise BadRequest(f"no target can have two different values of {item.key!r}")
        elif item.operator in _EXPRESSIONS:
            merged = item.operator is Operator.NOT_IN
            place = (item.key, _EXPRESSIONS[item.operator], -1 if merged else index)
            expressions[place] = (*expressions.get(place, ()), *item.values)
        else:
            raise BadRequest(f"'{item}' compares numbers, which a lease's selector cannot")
    return LabelSelector(
        match_labels=match_labels,
        match_expressions=tuple(
            LabelSelectorRequirement(key=key, operator=operator, values=tuple(sorted(set(values))))
            for (key, operator, _), values in expressions.items()
        ),
    )
