"""OpenAPI v2 in the protobuf form that kubectl before 1.27 requires.

Debian's kubectl is 1.20: it validates, explains and checks for dry run with this document
and accepts no other form of it. Only the parts it reads are written: the definitions of the
kinds, and their patch operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bullpen.api.document import encode
from bullpen.api.resources import Resource, Resources
from bullpen.apiserver.openapi import schema_name

ASKED_AS = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
ANSWERED_AS = "application/octet-stream"
"""Old clients cannot parse the type they ask for; real servers answer with this one."""

_GVK = "x-kubernetes-group-version-kind"
_KEPT_EXTENSIONS = (
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
)


def document(resources: Resources, *, version: str) -> bytes:
    """The whole document: every served kind."""
    return b"".join(
        (
            _text(1, "2.0"),
            _message(2, _text(1, "Bullpen") + _text(2, version)),
            _message(8, b"".join(_message(2, _path(resource)) for resource in resources)),
            _message(9, b"".join(_message(1, _definition(resource)) for resource in resources)),
        )
    )


def _path(resource: Resource) -> bytes:
    """A NamedPathItem with the patch operation, which announces support for dry run."""
    parameters = b"".join(
        _message(8, _message(1, _message(2, _message(3, _query(name)))))
        for name in ("dryRun", "fieldManager", "force")
    )
    operation = parameters + _extension(13, _GVK, _gvk(resource))
    root = f"/apis/{resource.group}" if resource.group else "/api"
    scope = "/namespaces/{namespace}" if resource.namespaced else ""
    name = f"{root}/{resource.version}{scope}/{resource.plural}/{{name}}"
    return _text(1, name) + _message(2, _message(8, operation))


def _query(name: str) -> bytes:
    return _text(2, "query") + _text(4, name) + _text(6, "string")


def _definition(resource: Resource) -> bytes:
    schema = _schema(resource.schema) + _extension(31, _GVK, [_gvk(resource)])
    return _text(1, schema_name(resource)) + _message(2, schema)


def _gvk(resource: Resource) -> dict[str, str]:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _schema(schema: Mapping[str, Any]) -> bytes:
    """A Schema message. A value that may be anything has no type, so that all are accepted."""
    parts = [_text(4, str(schema.get("description", "")))]
    if schema.get("x-kubernetes-int-or-string") or _is_anything(schema):
        return b"".join(parts)
    parts.append(_message(22, _text(1, str(schema.get("type", "")))))
    if "format" in schema:
        parts.append(_text(2, str(schema["format"])))
    parts += [_text(19, name) for name in schema.get("required", ())]
    extra = schema.get("additionalProperties")
    if isinstance(extra, Mapping):
        parts.append(_message(21, _message(1, _schema(extra))))
    if "items" in schema:
        parts.append(_message(23, _message(1, _schema(schema["items"]))))
    if "properties" in schema:
        named = (_named(name, item) for name, item in schema["properties"].items())
        parts.append(_message(25, b"".join(_message(1, item) for item in named)))
    parts += _extensions(schema)
    return b"".join(parts)


def _is_anything(schema: Mapping[str, Any]) -> bool:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return True
    known = ("properties", "additionalProperties")
    return schema.get("type") in (None, "object") and not any(name in schema for name in known)


def _named(name: str, schema: Mapping[str, Any]) -> bytes:
    return _text(1, name) + _message(2, _schema(schema))


def _extensions(schema: Mapping[str, Any]) -> Iterable[bytes]:
    return [_extension(31, name, schema[name]) for name in _KEPT_EXTENSIONS if name in schema]


def _extension(number: int, name: str, value: object) -> bytes:
    """A NamedAny. The reader expects YAML, of which JSON is a subset."""
    return _message(number, _text(1, name) + _message(2, _text(2, encode(value).decode())))


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode()) if text else b""


def _message(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
