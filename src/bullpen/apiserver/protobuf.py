"""Reads the Kubernetes protobuf bodies that kubectl sends for built-in kinds.

kubectl 1.32 and typed Go clients encode creates of Namespace, Secret and the like as
protobuf and do not fall back to JSON. One table of field numbers per message describes such
a body; protobuf's own runtime parses it, and the result is converted to a document. Answers
are always JSON, which every client accepts.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Parsed

from bullpen.api.paths import Document
from bullpen.api.paths import decode as decode_json
from bullpen.errors import BadRequest, UnsupportedMediaType
from bullpen.kit import times

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

TEXT = FieldDescriptorProto.TYPE_STRING
BYTES = FieldDescriptorProto.TYPE_BYTES
INTEGER = FieldDescriptorProto.TYPE_INT64
BOOLEAN = FieldDescriptorProto.TYPE_BOOL
MESSAGE = FieldDescriptorProto.TYPE_MESSAGE
OPTIONAL = FieldDescriptorProto.LABEL_OPTIONAL
REPEATED = FieldDescriptorProto.LABEL_REPEATED


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: FieldDescriptorProto.Type.ValueType | Message
    repeated: bool = False
    mapped: bool = False
    """A map from strings to values of this type."""


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    fields: dict[int, Field]
    convert: Callable[[Document], Any] = lambda document: document
    """What the message is in JSON, given its fields; None leaves it out."""


def decode(body: bytes) -> Document:
    """The document in a ``k8s\\0`` body; refuses kinds that have no table."""
    if not body.startswith(MAGIC):
        raise BadRequest("the body is not Kubernetes protobuf: its first bytes must be 'k8s\\0'")
    envelope = _read(body[len(MAGIC) :], _UNKNOWN)
    type_meta = envelope.get("typeMeta", {})
    api_version, kind = type_meta.get("apiVersion", ""), type_meta.get("kind", "")
    # Typed clients write options in the version of the group they are for.
    table = KINDS.get(("v1" if kind == "DeleteOptions" else api_version, kind))
    if table is None:
        raise UnsupportedMediaType(
            f"{kind or 'this kind'} of {api_version or 'an unknown version'} is not accepted"
            " as protobuf; send application/json"
        )
    content = _read(base64.b64decode(envelope.get("raw", "")), table)
    return {"apiVersion": api_version, "kind": kind, **content}


def _read(data: bytes, table: Message) -> Document:
    try:
        return _document(_parser(table).FromString(data), table)
    except DecodeError:
        raise BadRequest("the protobuf body is truncated or malformed") from None
    except UnicodeDecodeError:
        raise BadRequest("the protobuf body has text that is not UTF-8") from None


def _document(parsed: Parsed, table: Message) -> Document:
    document: Document = {}
    for descriptor, raw in parsed.ListFields():
        field = table.fields[descriptor.number]
        if field.mapped:
            document[field.name] = {key: _value(raw[key], field) for key in raw}
        elif field.repeated:
            document[field.name] = [_value(item, field) for item in raw]
        elif (value := _value(raw, field)) not in ("", None):
            # Go encodes empty strings that JSON would omit.
            document[field.name] = value
    return document


def _value(raw: Any, field: Field) -> Any:
    if isinstance(field.type, Message):
        return field.type.convert(_document(raw, field.type))
    return base64.b64encode(raw).decode() if isinstance(raw, bytes) else raw


@cache
def _parser(table: Message) -> type[Parsed]:
    """The runtime's class for a table, with all messages that it contains."""
    file = FileDescriptorProto(name="kind.proto", syntax="proto2")
    _describe(file.message_type.add(name="Kind"), table)
    pool = DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Kind"))


def _describe(message: DescriptorProto, table: Message, scope: str = "") -> None:
    """Fills in a message; the messages in its fields become nested types."""
    scope = f"{scope}.{message.name}"
    for number, field in table.fields.items():
        label = REPEATED if field.repeated or field.mapped else OPTIONAL
        described = message.field.add(name=field.name, number=number, label=label)
        if field.mapped:
            # The runtime insists on this name for the entries of a map.
            entry = message.nested_type.add(name=f"{field.name[0].upper()}{field.name[1:]}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, type=TEXT, label=OPTIONAL)
            described.type = MESSAGE
            described.type_name = f"{scope}.{entry.name}"
            described = entry.field.add(name="value", number=2, label=OPTIONAL)
        if isinstance(field.type, Message):
            inner = message.nested_type.add(name=f"Field{number}")
            _describe(inner, field.type, scope)
            described.type = MESSAGE
            described.type_name = f"{scope}.{inner.name}"
        else:
            described.type = field.type


def _moment(render: Callable[[datetime], str]) -> Message:
    def convert(value: Document) -> str | None:
        if not value:
            return None
        try:
            moment = _EPOCH + timedelta(
                seconds=value.get("seconds", 0), microseconds=value.get("nanos", 0) // 1000
            )
        except OverflowError:
            raise BadRequest("the protobuf body has a time outside the calendar") from None
        return render(moment)

    return Message({1: Field("seconds", INTEGER), 2: Field("nanos", INTEGER)}, convert)


_RAW_JSON = Message(
    {1: Field("raw", BYTES)},
    lambda value: decode_json(base64.b64decode(value.get("raw", "")) or b"{}"),
)

_ITEMS = Message({1: Field("items", TEXT, repeated=True)}, lambda value: value.get("items", []))


def _texts(name: str) -> Field:
    return Field(name, TEXT, mapped=True)


_TIME, _MICRO_TIME = _moment(times.text), _moment(times.micro_text)

_UNKNOWN = Message(
    {
        1: Field("typeMeta", Message({1: Field("apiVersion", TEXT), 2: Field("kind", TEXT)})),
        2: Field("raw", BYTES),
    }
)

_OWNER = Message(
    {
        1: Field("kind", TEXT),
        3: Field("name", TEXT),
        4: Field("uid", TEXT),
        5: Field("apiVersion", TEXT),
        6: Field("controller", BOOLEAN),
        7: Field("blockOwnerDeletion", BOOLEAN),
    }
)

_MANAGED = Message(
    {
        1: Field("manager", TEXT),
        2: Field("operation", TEXT),
        3: Field("apiVersion", TEXT),
        4: Field("time", _TIME),
        6: Field("fieldsType", TEXT),
        7: Field("fieldsV1", _RAW_JSON),
        8: Field("subresource", TEXT),
    }
)

_META = Message(
    {
        1: Field("name", TEXT),
        2: Field("generateName", TEXT),
        3: Field("namespace", TEXT),
        5: Field("uid", TEXT),
        6: Field("resourceVersion", TEXT),
        7: Field("generation", INTEGER),
        8: Field("creationTimestamp", _TIME),
        9: Field("deletionTimestamp", _TIME),
        10: Field("deletionGracePeriodSeconds", INTEGER),
        11: _texts("labels"),
        12: _texts("annotations"),
        13: Field("ownerReferences", _OWNER, repeated=True),
        14: Field("finalizers", TEXT, repeated=True),
        17: Field("managedFields", _MANAGED, repeated=True),
    }
)

_REFERENCE = Message(
    {
        1: Field("kind", TEXT),
        2: Field("namespace", TEXT),
        3: Field("name", TEXT),
        4: Field("uid", TEXT),
        5: Field("apiVersion", TEXT),
        6: Field("resourceVersion", TEXT),
        7: Field("fieldPath", TEXT),
    }
)

_META_FIELD = Field("metadata", _META)

_LABEL_SELECTOR = Message(
    {
        1: _texts("matchLabels"),
        2: Field(
            "matchExpressions",
            Message(
                {
                    1: Field("key", TEXT),
                    2: Field("operator", TEXT),
                    3: Field("values", TEXT, repeated=True),
                }
            ),
            repeated=True,
        ),
    }
)

_RULES = Field(
    "rules",
    Message(
        {
            1: Field("verbs", TEXT, repeated=True),
            2: Field("apiGroups", TEXT, repeated=True),
            3: Field("resources", TEXT, repeated=True),
            4: Field("resourceNames", TEXT, repeated=True),
            5: Field("nonResourceURLs", TEXT, repeated=True),
        }
    ),
    repeated=True,
)

_BINDING = Message(
    {
        1: _META_FIELD,
        2: Field(
            "subjects",
            Message(
                {
                    1: Field("kind", TEXT),
                    2: Field("apiGroup", TEXT),
                    3: Field("name", TEXT),
                    4: Field("namespace", TEXT),
                }
            ),
            repeated=True,
        ),
        3: Field(
            "roleRef",
            Message({1: Field("apiGroup", TEXT), 2: Field("kind", TEXT), 3: Field("name", TEXT)}),
        ),
    }
)

_ACCESS = Message(
    {
        1: Field(
            "resourceAttributes",
            Message(
                {
                    1: Field("namespace", TEXT),
                    2: Field("verb", TEXT),
                    3: Field("group", TEXT),
                    4: Field("version", TEXT),
                    5: Field("resource", TEXT),
                    6: Field("subresource", TEXT),
                    7: Field("name", TEXT),
                }
            ),
        ),
        2: Field(
            "nonResourceAttributes", Message({1: Field("path", TEXT), 2: Field("verb", TEXT)})
        ),
    }
)

_SUBJECT_ACCESS = Message(
    {
        1: _META_FIELD,
        2: Field(
            "spec",
            Message(
                {
                    **_ACCESS.fields,
                    3: Field("user", TEXT),
                    4: Field("groups", TEXT, repeated=True),
                    5: Field("extra", _ITEMS, mapped=True),
                    6: Field("uid", TEXT),
                }
            ),
        ),
    }
)

KINDS: dict[tuple[str, str], Message] = {
    ("v1", "Namespace"): Message(
        {
            1: _META_FIELD,
            2: Field("spec", Message({1: Field("finalizers", TEXT, repeated=True)})),
            3: Field("status", Message({1: Field("phase", TEXT)})),
        }
    ),
    ("v1", "Secret"): Message(
        {
            1: _META_FIELD,
            2: Field("data", BYTES, mapped=True),
            3: Field("type", TEXT),
            4: _texts("stringData"),
            5: Field("immutable", BOOLEAN),
        }
    ),
    ("v1", "ConfigMap"): Message(
        {
            1: _META_FIELD,
            2: _texts("data"),
            3: Field("binaryData", BYTES, mapped=True),
            4: Field("immutable", BOOLEAN),
        }
    ),
    ("v1", "Event"): Message(
        {
            1: _META_FIELD,
            2: Field("involvedObject", _REFERENCE),
            3: Field("reason", TEXT),
            4: Field("message", TEXT),
            5: Field("source", Message({1: Field("component", TEXT), 2: Field("host", TEXT)})),
            6: Field("firstTimestamp", _TIME),
            7: Field("lastTimestamp", _TIME),
            8: Field("count", INTEGER),
            9: Field("type", TEXT),
            10: Field("eventTime", _MICRO_TIME),
            11: Field(
                "series",
                Message({1: Field("count", INTEGER), 2: Field("lastObservedTime", _MICRO_TIME)}),
            ),
            12: Field("action", TEXT),
            13: Field("related", _REFERENCE),
            14: Field("reportingComponent", TEXT),
            15: Field("reportingInstance", TEXT),
        }
    ),
    ("coordination.k8s.io/v1", "Lease"): Message(
        {
            1: _META_FIELD,
            2: Field(
                "spec",
                Message(
                    {
                        1: Field("holderIdentity", TEXT),
                        2: Field("leaseDurationSeconds", INTEGER),
                        3: Field("acquireTime", _MICRO_TIME),
                        4: Field("renewTime", _MICRO_TIME),
                        5: Field("leaseTransitions", INTEGER),
                        6: Field("strategy", TEXT),
                        7: Field("preferredHolder", TEXT),
                    }
                ),
            ),
        }
    ),
    ("v1", "DeleteOptions"): Message(
        {
            1: Field("gracePeriodSeconds", INTEGER),
            2: Field(
                "preconditions", Message({1: Field("uid", TEXT), 2: Field("resourceVersion", TEXT)})
            ),
            3: Field("orphanDependents", BOOLEAN),
            4: Field("propagationPolicy", TEXT),
            5: Field("dryRun", TEXT, repeated=True),
        }
    ),
    ("v1", "ServiceAccount"): Message(
        {
            1: _META_FIELD,
            2: Field("secrets", _REFERENCE, repeated=True),
            3: Field("imagePullSecrets", Message({1: Field("name", TEXT)}), repeated=True),
            4: Field("automountServiceAccountToken", BOOLEAN),
        }
    ),
    ("rbac.authorization.k8s.io/v1", "Role"): Message({1: _META_FIELD, 2: _RULES}),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): Message(
        {
            1: _META_FIELD,
            2: _RULES,
            3: Field(
                "aggregationRule",
                Message({1: Field("clusterRoleSelectors", _LABEL_SELECTOR, repeated=True)}),
            ),
        }
    ),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): _BINDING,
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): _BINDING,
    ("authentication.k8s.io/v1", "TokenRequest"): Message(
        {
            1: _META_FIELD,
            2: Field(
                "spec",
                Message(
                    {
                        1: Field("audiences", TEXT, repeated=True),
                        3: Field(
                            "boundObjectRef",
                            Message(
                                {
                                    1: Field("kind", TEXT),
                                    2: Field("apiVersion", TEXT),
                                    3: Field("name", TEXT),
                                    4: Field("uid", TEXT),
                                }
                            ),
                        ),
                        4: Field("expirationSeconds", INTEGER),
                    }
                ),
            ),
        }
    ),
    ("authentication.k8s.io/v1", "TokenReview"): Message(
        {
            1: _META_FIELD,
            2: Field(
                "spec",
                Message({1: Field("token", TEXT), 2: Field("audiences", TEXT, repeated=True)}),
            ),
        }
    ),
    ("authorization.k8s.io/v1", "SubjectAccessReview"): _SUBJECT_ACCESS,
    ("authorization.k8s.io/v1", "LocalSubjectAccessReview"): _SUBJECT_ACCESS,
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): Message(
        {
            1: _META_FIELD,
            2: Field("spec", _ACCESS),
        }
    ),
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): Message(
        {
            1: _META_FIELD,
            2: Field("spec", Message({1: Field("namespace", TEXT)})),
        }
    ),
    ("authentication.k8s.io/v1", "SelfSubjectReview"): Message({1: _META_FIELD}),
}
