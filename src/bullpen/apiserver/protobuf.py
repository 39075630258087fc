"""Reads the Kubernetes protobuf bodies that kubectl sends for built-in kinds.

kubectl 1.32 and typed Go clients encode creates of Namespace, Secret and the like as
protobuf and do not fall back to JSON. One table of field numbers per message converts such
a body to a document. Answers are always JSON, which every client accepts.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from bullpen.api.document import Document
from bullpen.api.document import decode as decode_json
from bullpen.errors import BadRequest, UnsupportedMediaType
from bullpen.kit import times

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"
DEPTH_MAX = 20

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    read: Callable[[Any, int], Any]
    """Converts the raw value, at a nesting depth, to JSON."""

    repeated: bool = False
    mapped: bool = False


Message = dict[int, Field]


def decode(body: bytes) -> Document:
    """The document in a ``k8s\\0`` body; refuses kinds that have no table."""
    if not body.startswith(MAGIC):
        raise BadRequest("the body is not Kubernetes protobuf: its first bytes must be 'k8s\\0'")
    envelope = _message(body[len(MAGIC) :], _UNKNOWN, 0)
    type_meta = envelope.get("typeMeta", {})
    api_version, kind = type_meta.get("apiVersion", ""), type_meta.get("kind", "")
    # Typed clients write options in the version of the group they are for.
    table = KINDS.get(("v1" if kind == "DeleteOptions" else api_version, kind))
    if table is None:
        raise UnsupportedMediaType(
            f"{kind or 'this kind'} of {api_version or 'an unknown version'} is not accepted"
            " as protobuf; send application/json"
        )
    content = _message(base64.b64decode(envelope.get("raw", "")), table, 0)
    return {"apiVersion": api_version, "kind": kind, **content}


def _message(data: bytes, table: Message, depth: int) -> Document:
    if depth > DEPTH_MAX:
        raise BadRequest("the protobuf body is nested too deep")
    document: Document = {}
    for number, raw in _fields(data):
        field = table.get(number)
        if field is None:
            continue
        value = field.read(raw, depth)
        if field.mapped:
            document.setdefault(field.name, {})[value.get("key", "")] = value.get("value", "")
        elif field.repeated:
            document.setdefault(field.name, []).append(value)
        elif value not in ("", None):
            # Go encodes empty strings that JSON would omit.
            document[field.name] = value
    return document


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, position = _varint(data, position)
            yield number, value
        elif wire == _BYTES:
            length, position = _varint(data, position)
            yield number, _take(data, position, length)
            position += length
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
            yield number, int.from_bytes(_take(data, position, length), "little")
            position += length
        else:
            raise BadRequest(f"the protobuf body has an unknown wire type {wire}")


def _take(data: bytes, position: int, length: int) -> bytes:
    piece = data[position : position + length]
    if len(piece) != length:
        raise BadRequest("the protobuf body is truncated")
    return piece


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise BadRequest("the protobuf body is truncated")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value & (1 << 64) - 1, position
    raise BadRequest("the protobuf body has a number that does not end")


def _text(raw: Any, _depth: int) -> str:
    if not isinstance(raw, bytes):
        raise BadRequest("the protobuf body has a number where text belongs")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadRequest("the protobuf body has text that is not UTF-8") from None


def _base64(raw: Any, _depth: int) -> str:
    if not isinstance(raw, bytes):
        raise BadRequest("the protobuf body has a number where bytes belong")
    return base64.b64encode(raw).decode()


def _integer(raw: Any, _depth: int) -> int:
    if not isinstance(raw, int):
        raise BadRequest("the protobuf body has bytes where a number belongs")
    return raw - (1 << 64) if raw >= 1 << 63 else raw


def _boolean(raw: Any, depth: int) -> bool:
    return _integer(raw, depth) != 0


def _nested(table: Message) -> Callable[[Any, int], Document]:
    def read(raw: Any, depth: int) -> Document:
        if not isinstance(raw, bytes):
            raise BadRequest("the protobuf body has a number where a message belongs")
        return _message(raw, table, depth + 1)

    return read


def _moment(render: Callable[[datetime], str]) -> Callable[[Any, int], str | None]:
    parts: Message = {1: Field("seconds", _integer), 2: Field("nanos", _integer)}

    def read(raw: Any, depth: int) -> str | None:
        value = _nested(parts)(raw, depth)
        if not value:
            return None
        try:
            moment = _EPOCH + timedelta(
                seconds=value.get("seconds", 0), microseconds=value.get("nanos", 0) // 1000
            )
        except OverflowError:
            raise BadRequest("the protobuf body has a time outside the calendar") from None
        return render(moment)

    return read


def _raw_json(raw: Any, depth: int) -> Any:
    inner = _nested({1: Field("raw", _base64)})(raw, depth)
    return decode_json(base64.b64decode(inner.get("raw", "")) or b"{}")


def _entry(read_value: Callable[[Any, int], Any]) -> Callable[[Any, int], Document]:
    return _nested({1: Field("key", _text), 2: Field("value", read_value)})


def _items(raw: Any, depth: int) -> list[str]:
    found: list[str] = _nested({1: Field("items", _text, repeated=True)})(raw, depth).get(
        "items", []
    )
    return found


def _texts(name: str) -> Field:
    return Field(name, _entry(_text), mapped=True)


_TIME, _MICRO_TIME = _moment(times.text), _moment(times.micro_text)

_UNKNOWN: Message = {
    1: Field("typeMeta", _nested({1: Field("apiVersion", _text), 2: Field("kind", _text)})),
    2: Field("raw", _base64),
}

_OWNER: Message = {
    1: Field("kind", _text),
    3: Field("name", _text),
    4: Field("uid", _text),
    5: Field("apiVersion", _text),
    6: Field("controller", _boolean),
    7: Field("blockOwnerDeletion", _boolean),
}

_MANAGED: Message = {
    1: Field("manager", _text),
    2: Field("operation", _text),
    3: Field("apiVersion", _text),
    4: Field("time", _TIME),
    6: Field("fieldsType", _text),
    7: Field("fieldsV1", _raw_json),
    8: Field("subresource", _text),
}

_META: Message = {
    1: Field("name", _text),
    2: Field("generateName", _text),
    3: Field("namespace", _text),
    5: Field("uid", _text),
    6: Field("resourceVersion", _text),
    7: Field("generation", _integer),
    8: Field("creationTimestamp", _TIME),
    9: Field("deletionTimestamp", _TIME),
    10: Field("deletionGracePeriodSeconds", _integer),
    11: _texts("labels"),
    12: _texts("annotations"),
    13: Field("ownerReferences", _nested(_OWNER), repeated=True),
    14: Field("finalizers", _text, repeated=True),
    17: Field("managedFields", _nested(_MANAGED), repeated=True),
}

_REFERENCE: Message = {
    1: Field("kind", _text),
    2: Field("namespace", _text),
    3: Field("name", _text),
    4: Field("uid", _text),
    5: Field("apiVersion", _text),
    6: Field("resourceVersion", _text),
    7: Field("fieldPath", _text),
}

_META_FIELD = Field("metadata", _nested(_META))

_LABEL_SELECTOR: Message = {
    1: _texts("matchLabels"),
    2: Field(
        "matchExpressions",
        _nested(
            {
                1: Field("key", _text),
                2: Field("operator", _text),
                3: Field("values", _text, repeated=True),
            }
        ),
        repeated=True,
    ),
}

_RULES = Field(
    "rules",
    _nested(
        {
            1: Field("verbs", _text, repeated=True),
            2: Field("apiGroups", _text, repeated=True),
            3: Field("resources", _text, repeated=True),
            4: Field("resourceNames", _text, repeated=True),
            5: Field("nonResourceURLs", _text, repeated=True),
        }
    ),
    repeated=True,
)

_BINDING: Message = {
    1: _META_FIELD,
    2: Field(
        "subjects",
        _nested(
            {
                1: Field("kind", _text),
                2: Field("apiGroup", _text),
                3: Field("name", _text),
                4: Field("namespace", _text),
            }
        ),
        repeated=True,
    ),
    3: Field(
        "roleRef",
        _nested({1: Field("apiGroup", _text), 2: Field("kind", _text), 3: Field("name", _text)}),
    ),
}

_ACCESS: Message = {
    1: Field(
        "resourceAttributes",
        _nested(
            {
                1: Field("namespace", _text),
                2: Field("verb", _text),
                3: Field("group", _text),
                4: Field("version", _text),
                5: Field("resource", _text),
                6: Field("subresource", _text),
                7: Field("name", _text),
            }
        ),
    ),
    2: Field("nonResourceAttributes", _nested({1: Field("path", _text), 2: Field("verb", _text)})),
}

_SUBJECT_ACCESS: Message = {
    1: _META_FIELD,
    2: Field(
        "spec",
        _nested(
            {
                **_ACCESS,
                3: Field("user", _text),
                4: Field("groups", _text, repeated=True),
                5: Field("extra", _entry(_items), mapped=True),
                6: Field("uid", _text),
            }
        ),
    ),
}

KINDS: dict[tuple[str, str], Message] = {
    ("v1", "Namespace"): {
        1: _META_FIELD,
        2: Field("spec", _nested({1: Field("finalizers", _text, repeated=True)})),
        3: Field("status", _nested({1: Field("phase", _text)})),
    },
    ("v1", "Secret"): {
        1: _META_FIELD,
        2: Field("data", _entry(_base64), mapped=True),
        3: Field("type", _text),
        4: _texts("stringData"),
        5: Field("immutable", _boolean),
    },
    ("v1", "ConfigMap"): {
        1: _META_FIELD,
        2: _texts("data"),
        3: Field("binaryData", _entry(_base64), mapped=True),
        4: Field("immutable", _boolean),
    },
    ("v1", "Event"): {
        1: _META_FIELD,
        2: Field("involvedObject", _nested(_REFERENCE)),
        3: Field("reason", _text),
        4: Field("message", _text),
        5: Field("source", _nested({1: Field("component", _text), 2: Field("host", _text)})),
        6: Field("firstTimestamp", _TIME),
        7: Field("lastTimestamp", _TIME),
        8: Field("count", _integer),
        9: Field("type", _text),
        10: Field("eventTime", _MICRO_TIME),
        11: Field(
            "series",
            _nested({1: Field("count", _integer), 2: Field("lastObservedTime", _MICRO_TIME)}),
        ),
        12: Field("action", _text),
        13: Field("related", _nested(_REFERENCE)),
        14: Field("reportingComponent", _text),
        15: Field("reportingInstance", _text),
    },
    ("coordination.k8s.io/v1", "Lease"): {
        1: _META_FIELD,
        2: Field(
            "spec",
            _nested(
                {
                    1: Field("holderIdentity", _text),
                    2: Field("leaseDurationSeconds", _integer),
                    3: Field("acquireTime", _MICRO_TIME),
                    4: Field("renewTime", _MICRO_TIME),
                    5: Field("leaseTransitions", _integer),
                    6: Field("strategy", _text),
                    7: Field("preferredHolder", _text),
                }
            ),
        ),
    },
    ("v1", "DeleteOptions"): {
        1: Field("gracePeriodSeconds", _integer),
        2: Field(
            "preconditions", _nested({1: Field("uid", _text), 2: Field("resourceVersion", _text)})
        ),
        3: Field("orphanDependents", _boolean),
        4: Field("propagationPolicy", _text),
        5: Field("dryRun", _text, repeated=True),
    },
    ("v1", "ServiceAccount"): {
        1: _META_FIELD,
        2: Field("secrets", _nested(_REFERENCE), repeated=True),
        3: Field("imagePullSecrets", _nested({1: Field("name", _text)}), repeated=True),
        4: Field("automountServiceAccountToken", _boolean),
    },
    ("rbac.authorization.k8s.io/v1", "Role"): {1: _META_FIELD, 2: _RULES},
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): {
        1: _META_FIELD,
        2: _RULES,
        3: Field(
            "aggregationRule",
            _nested({1: Field("clusterRoleSelectors", _nested(_LABEL_SELECTOR), repeated=True)}),
        ),
    },
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): _BINDING,
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): _BINDING,
    ("authentication.k8s.io/v1", "TokenRequest"): {
        1: _META_FIELD,
        2: Field(
            "spec",
            _nested(
                {
                    1: Field("audiences", _text, repeated=True),
                    3: Field(
                        "boundObjectRef",
                        _nested(
                            {
                                1: Field("kind", _text),
                                2: Field("apiVersion", _text),
                                3: Field("name", _text),
                                4: Field("uid", _text),
                            }
                        ),
                    ),
                    4: Field("expirationSeconds", _integer),
                }
            ),
        ),
    },
    ("authentication.k8s.io/v1", "TokenReview"): {
        1: _META_FIELD,
        2: Field(
            "spec",
            _nested({1: Field("token", _text), 2: Field("audiences", _text, repeated=True)}),
        ),
    },
    ("authorization.k8s.io/v1", "SubjectAccessReview"): _SUBJECT_ACCESS,
    ("authorization.k8s.io/v1", "LocalSubjectAccessReview"): _SUBJECT_ACCESS,
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): {
        1: _META_FIELD,
        2: Field("spec", _nested(_ACCESS)),
    },
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): {
        1: _META_FIELD,
        2: Field("spec", _nested({1: Field("namespace", _text)})),
    },
    ("authentication.k8s.io/v1", "SelfSubjectReview"): {1: _META_FIELD},
}
