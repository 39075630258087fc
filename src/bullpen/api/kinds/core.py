"""Kubernetes' own kinds that the lab needs.

Kubernetes' own kinds that the lab needs: Secret, ConfigMap, Namespace, Event, Lease.

ServiceAccount: an identity for programs, with tokens issued on request.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

import msgspec

from bullpen.api.fields import Kind, Struct, about
from bullpen.api.meta import LocalObjectReference, ObjectMeta
from bullpen.api.paths import Document, cut, shown, written
from bullpen.api.resource import resource
from bullpen.errors import Cause
from bullpen.kit.names import data_key_problem, dns_label_problem

SERVICE_ACCOUNT_NAME = "kubernetes.io/service-account.name"

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
    yield from _secret_type_causes(document)
    if old is not None and document.get("type") != old.get("type"):
        yield _forbidden("type", "is immutable; create the Secret anew")


def _secret_type_causes(document: Document) -> Iterator[Cause]:
    """The keys and annotations that a Secret of a known type must have."""
    data = {**document.get("data", {}), **document.get("stringData", {})}
    match document.get("type"):
        case "kubernetes.io/tls":
            yield from (_absent("data", key) for key in ("tls.crt", "tls.key") if key not in data)
        case "kubernetes.io/ssh-auth":
            if not data.get("ssh-privatekey"):
                yield _absent("data", "ssh-privatekey")
        case "kubernetes.io/basic-auth":
            if "username" not in data and "password" not in data:
                yield from (_absent("data", key) for key in ("username", "password"))
        case "kubernetes.io/dockercfg":
            yield from _json_causes(data, ".dockercfg")
        case "kubernetes.io/dockerconfigjson":
            yield from _json_causes(data, ".dockerconfigjson")
        case "kubernetes.io/service-account-token":
            annotations = document["metadata"].get("annotations") or {}
            if not annotations.get(SERVICE_ACCOUNT_NAME):
                yield _absent("metadata.annotations", SERVICE_ACCOUNT_NAME)
        case _:
            """Other types promise nothing about their data."""


def _json_causes(data: Mapping[str, str], key: str) -> Iterator[Cause]:
    if key not in data:
        yield _absent("data", key)
        return
    try:
        decoded = msgspec.json.decode(base64.b64decode(data[key]))
    except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        message = 'Invalid value: "<secret contents redacted>": is not a JSON object'
        yield Cause(field=_entry("data", key), message=message)


def _entry(name: str, key: str) -> str:
    """The path of an entry of a map, as Kubernetes writes it."""
    return f"{name}[{cut(key)}]"


def _absent(name: str, key: str) -> Cause:
    return Cause(_entry(name, key), message="Required value", reason="FieldValueRequired")


def configmap_causes(document: Document, old: Document | None) -> Iterator[Cause]:
    """Checks of a ConfigMap beyond its schema."""
    yield from _data_causes(document, old, ("data", "binaryData"))
    for name, other in (("data", "binaryData"), ("binaryData", "data")):
        for key in document.get(name, {}):
            if key in document.get(other, {}):
                message = f"Invalid value: {shown(key)}: duplicate of key present in {other}"
                yield Cause(field=_entry(name, key), message=message)


def event_causes(document: Document, old: Document | None) -> Iterator[Cause]:
    """Checks of an Event beyond its schema: it is in the namespace of its object."""
    namespace = document["metadata"].get("namespace", "")
    about = document["involvedObject"].get("namespace", "")
    if document.get("eventTime") is None:
        fits = namespace == about or (not about and namespace == "default")
    else:
        fits = bool(about) or namespace in ("default", "kube-system")
    if not fits:
        message = f"Invalid value: {shown(about)}: does not match event.namespace"
        yield Cause(field="involvedObject.namespace", message=message)


def coordination_lease_causes(document: Document, old: Document | None) -> Iterator[Cause]:
    """Checks of a coordination Lease beyond its schema."""
    spec = document.get("spec") or {}
    seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if seconds is not None and seconds <= 0:
        message = f"Invalid value: {seconds}: must be greater than 0"
        yield Cause(field="spec.leaseDurationSeconds", message=message)
    if transitions is not None and transitions < 0:
        message = f"Invalid value: {transitions}: must be greater than or equal to 0"
        yield Cause(field="spec.leaseTransitions", message=message)


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


USERNAME_PREFIX = "system:serviceaccount:"
GROUP = "system:serviceaccounts"
"""Every service account is in this group, and in that of its namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccount(Kind):
    """An identity for programs such as pipelines; its ``token`` subresource makes tokens."""

    api_version: ClassVar[str] = "v1"
    kind: ClassVar[str] = "ServiceAccount"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    secrets: tuple[ObjectReference, ...] = field(
        default=(), metadata=about("Secrets of the account; not used here.", list_type="atomic")
    )
    image_pull_secrets: tuple[LocalObjectReference, ...] = field(
        default=(),
        metadata=about("Secrets for pulling images; not used here.", list_type="atomic"),
    )
    automount_service_account_token: bool | None = field(
        default=None, metadata=about("Whether Pods get a token; not used here.")
    )


def username(namespace: str, name: str) -> str:
    """The user name of the account."""
    return f"{USERNAME_PREFIX}{namespace}:{name}"


def groups(namespace: str) -> tuple[str, ...]:
    """The groups of every service account in ``namespace``."""
    return (GROUP, f"{GROUP}:{namespace}")


def parse_username(user: str) -> tuple[str, str] | None:
    """The namespace and name of the account that ``user`` names; None for other users."""
    parts = user.removeprefix(USERNAME_PREFIX).split(":")
    if not user.startswith(USERNAME_PREFIX) or len(parts) != 2 or not all(parts):
        return None
    return parts[0], parts[1]


RESOURCES = (
    resource(
        Namespace,
        "namespaces",
        custom=False,
        namespaced=False,
        status=True,
        short_names=("ns",),
        name_problem=dns_label_problem,
    ),
    resource(Secret, "secrets", custom=False, fold=fold_string_data, checks=(secret_causes,)),
    resource(
        ConfigMap, "configmaps", custom=False, short_names=("cm",), checks=(configmap_causes,)
    ),
    resource(Event, "events", custom=False, short_names=("ev",), checks=(event_causes,)),
    resource(ServiceAccount, "serviceaccounts", custom=False, short_names=("sa",), tokens=True),
    resource(
        CoordinationLease,
        "leases",
        custom=False,
        versioned_updates=True,
        checks=(coordination_lease_causes,),
    ),
)
