"""Structural OpenAPI v3 schemas, derived from the definitions of the kinds.

One walk over the dataclasses yields what the CRDs publish, what ``kubectl explain`` shows,
the defaults, and the schema for validation. Nothing here looks at a document.
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
from bullpen.api.document import Document
from bullpen.api.fields import Attribute, Kind, Rule, Struct, attributes, per_type

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
