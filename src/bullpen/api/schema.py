"""Structural schemas of the kinds, and their defaults.

Structural OpenAPI v3 schemas, derived from the definitions of the kinds. One walk over the
dataclasses yields what the CRDs publish, what ``kubectl explain`` shows, the defaults, and
the schema for validation. Nothing here looks at a document.

Structural defaulting: fills absent fields with the defaults of the schema. As in
Kubernetes, a default is filled in only if its parent object exists, and a null where null
is not allowed counts as absent. Any JSON is accepted and the argument is never modified;
the result is not validated here.

Most writes change one section of an object. A section that is the same object as in a
complete document is complete too, and is passed on unchecked.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from bullpen.api import codec
from bullpen.api.fields import Attribute, Kind, Rule, Struct, attributes, per_type
from bullpen.api.limits import DEPTH_MAX
from bullpen.api.paths import Document

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

_SCALARS: dict[Any, Mapping[str, object]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int64"},
    int | str: {"x-kubernetes-int-or-string": True},
    datetime: {"type": "string", "format": "date-time"},
    timedelta: {"type": "string", "format": "duration"},
    object: {"x-kubernetes-preserve-unknown-fields": True},
}


@per_type
def of(cls: Any) -> Document:
    """The schema of ``cls``. Callers share the result and must not modify it."""
    schema: Document = {"description": _prose(cls), "type": "object"}
    fields = attributes(cls)
    properties = {attribute.wire: _property(attribute) for attribute in fields}
    if issubclass(cls, Kind):
        properties = {**_TYPE_META, **properties}
    if properties:
        schema["properties"] = properties
    required = [attribute.wire for attribute in fields if attribute.limits.required]
    if required:
        schema["required"] = required
    if cls.atomic:
        schema["x-kubernetes-map-type"] = "atomic"
    if cls.rules:
        schema["x-kubernetes-validations"] = [_rule(rule) for rule in cls.rules]
    return schema


_TYPE_META: Mapping[str, Document] = {
    "apiVersion": {
        "description": "Group and version that define the fields of this object.",
        "type": "string",
    },
    "kind": {
        "description": "What this object is, in CamelCase. It never changes.",
        "type": "string",
    },
}


def _prose(cls: type[Struct]) -> str:
    return " ".join((cls.__doc__ or "").split()).replace("``", "")


def _property(attribute: Attribute) -> Document:
    limits = attribute.limits
    schema = {**_typed(attribute.hint), **limits.schema, "description": limits.description}
    for part in ("items", "additionalProperties"):
        if limits.items and part in schema:
            schema[part] = {**schema[part], **limits.items}
    if limits.nullable:
        schema["nullable"] = True
    if limits.defaulted:
        schema["default"] = _default(attribute)
    elif limits.default is not None:
        schema["default"] = limits.default
    return schema


def _default(attribute: Attribute) -> object:
    assert attribute.default is not dataclasses.MISSING, attribute.name
    return codec.encode_as(attribute.hint, attribute.default)


def _typed(hint: Any) -> Document:
    if hint in _SCALARS:
        return dict(_SCALARS[hint])
    if isinstance(hint, type) and issubclass(hint, Struct):
        return dict(of(hint))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return {"type": "string", "enum": [member.value for member in hint]}
    return _container(hint)


def _container(hint: Any) -> Document:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return _typed(args[0])
    if origin is tuple:
        return {"type": "array", "items": _typed(args[0])}
    if args[1] is object:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {"type": "object", "additionalProperties": _typed(args[1])}


def _rule(rule: Rule) -> Document:
    written: Document = {"rule": rule.rule, "message": rule.message}
    if rule.field_path:
        written["fieldPath"] = rule.field_path
    if rule.reason != "FieldValueInvalid":
        written["reason"] = rule.reason
    return written


_Schema = Mapping[str, Any]
_OPEN: _Schema = {}


def with_defaults(
    schema: _Schema, document: Document, complete: Document | None = None
) -> Document:
    """A copy of ``document`` with the defaults of ``schema`` filled in.

    Sections that are the same objects as in ``complete`` are shared, not copied.
    """
    return _object(schema, document, 0, complete or _OPEN)


def _value(schema: _Schema, value: Any, depth: int) -> Any:
    # Deeper than validation allows: such a document is rejected, so need not be copied.
    if depth > DEPTH_MAX:
        return value
    if isinstance(value, dict):
        return _object(schema, value, depth)
    if isinstance(value, list):
        items = schema.get("items", _OPEN)
        return [_value(items, item, depth + 1) for item in value]
    return value


def _object(
    schema: _Schema, value: Document, depth: int, complete: Mapping[str, Any] = _OPEN
) -> Document:
    properties: Mapping[str, _Schema] = schema.get("properties", _OPEN)
    others: _Schema = schema.get("additionalProperties", _OPEN)
    filled = {}
    for key, item in value.items():
        if complete and item is not None and item is complete.get(key):
            filled[key] = item
            continue
        known = properties.get(key, others)
        if item is None and _refuses_null(known):
            continue
        filled[key] = _value(known, item, depth + 1)
    for key, known in properties.items():
        if "default" in known and key not in filled:
            filled[key] = _value(known, known["default"], depth + 1)
    return filled


def _refuses_null(schema: _Schema) -> bool:
    return "type" in schema and not schema.get("nullable", False)
