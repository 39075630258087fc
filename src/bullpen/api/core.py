"""Kubernetes' own kinds that the lab needs: Secret, ConfigMap, Namespace, Event, Lease."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from bullpen.api.document import Document
from bullpen.api.fields import Kind, Struct, about
from bullpen.api.meta import ObjectMeta
from bullpen.api.paths import shown, written
from bullpen.errors import Cause
from bullpen.kit.names import data_key_problem

DATA_BYTES_MAX = 1024 * 1024
"""Kubernetes' limit on the data of one Secret or ConfigMap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret(Kind):
    """Small amounts of data that not everybody may see."""

    api_version: ClassVar[str] = "v1"
    kind: ClassVar[str] = "Secret"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    type: str = field(
        default="Opaque", metadata=about("What the data is for; never changes.", defaulted=True)
    )
    data: Mapping[str, str] = field(
        default_factory=dict, metadata=about("The data, in base64.", items={"format": "byte"})
    )
    string_data: Mapping[str, str] = field(
        default_factory=dict,
        metadata=about("Data as plain text; moved into data when written, never read back."),
    )
    immutable: bool = field(
        default=False, metadata=about("Whether the data may never change again.")
    )

    def read(self, key: str) -> bytes | None:
        """The decoded bytes under ``key``; None if the key is absent."""
        found = self.data.get(key)
        return None if found is None else base64.b64decode(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigMap(Kind):
    """Small amounts of data that anybody in the namespace may see."""

    api_version: ClassVar[str] = "v1"
    kind: ClassVar[str] = "ConfigMap"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    data: Mapping[str, str] = field(default_factory=dict, metadata=about("The data, as text."))
    binary_data: Mapping[str, str] = field(
        default_factory=dict,
        metadata=about("Data that is not text, in base64.", items={"format": "byte"}),
    )
    immutable: bool = field(
        default=False, metadata=about("Whether the data may never change again.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceSpec(Struct):
    """What must happen before the namespace goes."""

    finalizers: tuple[str, ...] = field(
        default=("kubernetes",),
        metadata=about(
            "Parties that must empty the namespace first.", list_type="atomic", defaulted=True
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceCondition(Struct):
    """One aspect of the state of the namespace."""

    type: str = field(metadata=about("What the condition is about.", required=True))
    status: str = field(metadata=about("True, False or Unknown.", required=True))
    last_transition_time: datetime | None = field(
        default=None, metadata=about("When the status last changed.")
    )
    reason: str = field(default="", metadata=about("Why it changed, in CamelCase."))
    message: str = field(default="", metadata=about("Human-readable message."))


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceStatus(Struct):
    """Where the namespace is in its life."""

    phase: str = field(default="Active", metadata=about("Active or Terminating.", defaulted=True))
    conditions: tuple[NamespaceCondition, ...] = field(
        default=(), metadata=about("Latest observations.", list_keys=("type",))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace(Kind):
    """A space within which names are unique."""

    api_version: ClassVar[str] = "v1"
    kind: ClassVar[str] = "Namespace"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: NamespaceSpec = field(
        default=NamespaceSpec(),
        metadata=about("What must happen before the namespace goes.", default={}),
    )
    status: NamespaceStatus = field(
        default=NamespaceStatus(),
        metadata=about("Where the namespace is in its life.", default={}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReference(Struct):
    """Any object, or a part of it."""

    atomic: ClassVar[bool] = True

    api_version: str = field(default="", metadata=about("API version of the object."))
    kind: str = field(default="", metadata=about("Kind of the object."))
    namespace: str = field(default="", metadata=about("Namespace of the object."))
    name: str = field(default="", metadata=about("Name of the object."))
    uid: str = field(default="", metadata=about("UID of the object."))
    resource_version: str = field(default="", metadata=about("Revision that is meant."))
    field_path: str = field(default="", metadata=about("Which part of the object."))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource(Struct):
    """Who reported an event, in the older form."""

    component: str = field(default="", metadata=about("The component."))
    host: str = field(default="", metadata=about("The host it runs on."))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSeries(Struct):
    """A series of the same event."""

    count: int = field(
        default=0, metadata=about("How often until lastObservedTime.", format="int32")
    )
    last_observed_time: datetime | None = field(
        default=None, metadata=about("When it was last seen.", micro=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Kind):
    """Something that happened to an object. For people; kept for a while only."""

    api_version: ClassVar[str] = "v1"
    kind: ClassVar[str] = "Event"

    metadata: ObjectMeta = field(
        default=ObjectMeta(), metadata=about("Object metadata.", required=True)
    )
    involved_object: ObjectReference = field(
        metadata=about("Object that the event is about.", required=True)
    )
    reason: str = field(default="", metadata=about("What happened, in CamelCase."))
    message: str = field(default="", metadata=about("Human-readable message."))
    source: EventSource = field(
        default=EventSource(), metadata=about("Who reported it, in the older form.")
    )
    first_timestamp: datetime | None = field(
        default=None, metadata=about("When it was first seen.")
    )
    last_timestamp: datetime | None = field(default=None, metadata=about("When it was last seen."))
    count: int = field(default=0, metadata=about("How often it was seen.", format="int32"))
    type: str = field(default="", metadata=about("Normal or Warning."))
    event_time: datetime | None = field(
        default=None, metadata=about("When it was first seen, to the microsecond.", micro=True)
    )
    series: EventSeries | None = field(
        default=None, metadata=about("The series it belongs to, if it repeats.")
    )
    action: str = field(default="", metadata=about("What was done about it."))
    related: ObjectReference | None = field(
        default=None, metadata=about("A second object it concerns.")
    )
    reporting_component: str = field(
        default="", metadata=about("The controller that reported it.", default="")
    )
    reporting_instance: str = field(
        default="", metadata=about("Which instance of that controller.", default="")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinationLeaseSpec(Struct):
    """Who holds the lease, and since when."""

    holder_identity: str = field(default="", metadata=about("The holder."))
    lease_duration_seconds: int | None = field(
        default=None,
        metadata=about("How long after renewTime others must wait.", format="int32"),
    )
    acquire_time: datetime | None = field(
        default=None, metadata=about("When the holder got it.", micro=True)
    )
    renew_time: datetime | None = field(
        default=None, metadata=about("When the holder last renewed it.", micro=True)
    )
    lease_transitions: int | None = field(
        default=None, metadata=about("How often the holder changed.", format="int32")
    )
    strategy: str = field(default="", metadata=about("How a holder is picked by coordination."))
    preferred_holder: str = field(default="", metadata=about("Who should become the holder."))


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinationLease(Kind):
    """Which of several processes may act."""

    api_version: ClassVar[str] = "coordination.k8s.io/v1"
    kind: ClassVar[str] = "Lease"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: CoordinationLeaseSpec = field(
        default=CoordinationLeaseSpec(),
        metadata=about("Who holds the lease, and since when."),
    )


def fold_string_data(document: Document) -> Document:
    """``document`` with ``stringData`` moved into ``data``, as Secrets are written."""
    texts = document.get("stringData")
    data = document.get("data", {})
    if not isinstance(texts, dict) or not isinstance(data, dict):
        return document
    if not all(_is_text(value) for value in texts.values()):
        return document
    folded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    rest = {key: value for key, value in document.items() if key != "stringData"}
    return {**rest, "data": {**data, **folded}} if folded or "data" in rest else rest


def _is_text(value: Any) -> bool:
    # A lone surrogate is not valid text; validation reports it, folding must not fail on it.
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


def secret_causes(document: Document, old: Document | None) -> Iterator[Cause]:
    """Checks of a Secret beyond its schema."""
    yield from _data_causes(document, old, ("data", "stringData"))
    if old is not None and document.get("type") != old.get("type"):
        yield _forbidden("type", "is immutable; create the Secret anew")


def configmap_causes(document: Document, old: Document | None) -> Iterator[Cause]:
    """Checks of a ConfigMap beyond its schema."""
    yield from _data_causes(document, old, ("data", "binaryData"))


def _data_causes(
    document: Document, old: Document | None, names: tuple[str, ...]
) -> Iterator[Cause]:
    total = 0
    for name in names:
        for key, value in document.get(name, {}).items():
            total += len(value.encode())
            problem = data_key_problem(key)
            if problem:
                yield Cause(
                    field=written((name, key)), message=f"Invalid value: {shown(key)}: {problem}"
                )
    if total > DATA_BYTES_MAX:
        yield Cause(
            field="data",
            message=f"Too long: must be no more than {DATA_BYTES_MAX} bytes in all",
            reason="FieldValueTooLong",
        )
    if old is not None and old.get("immutable") is True:
        yield from _thaw_causes(document, old, names)


def _thaw_causes(document: Document, old: Document, names: tuple[str, ...]) -> Iterator[Cause]:
    if document.get("immutable") is not True:
        yield _forbidden("immutable", "cannot be unset once `immutable` is true")
    for name in names:
        if document.get(name, {}) != old.get(name, {}):
            yield _forbidden(name, "cannot be changed while `immutable` is true")


def _forbidden(name: str, why: str) -> Cause:
    return Cause(field=name, message=f"Forbidden: field {why}", reason="FieldValueForbidden")


def is_base64(text: str) -> bool:
    """Whether ``text`` is valid base64 for the API."""
    try:
        base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return False
    return True
