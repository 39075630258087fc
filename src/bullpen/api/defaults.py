"""Structural defaulting: a document with what its schema says about absent fields.

As in Kubernetes a default is filled in only where the object around it exists,
and a null where null is not allowed counts as absent. Any JSON is accepted and
the argument is never changed; whether the result is valid is not asked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bullpen.api.document import Document
from bullpen.api.limits import DEPTH_MAX

_Schema = Mapping[str, Any]


def with_defaults(schema: _Schema, document: Document) -> Document:
    """A copy of ``document`` with the defaults of ``schema`` filled in."""
    return _object(schema, document, 0)


def _value(schema: _Schema, value: Any, depth: int) -> Any:
    # Deeper than validation allows: such a document is refused, so need not be copied.
    if depth > DEPTH_MAX:
        return value
    if isinstance(value, dict):
        return _object(schema, value, depth)
    if isinstance(value, list):
        items = schema.get("items", _OPEN)
        return [_value(items, item, depth + 1) for item in value]
    return value


def _object(schema: _Schema, value: Document, depth: int) -> Document:
    properties: Mapping[str, _Schema] = schema.get("properties", _OPEN)
    others: _Schema = schema.get("additionalProperties", _OPEN)
    filled = {}
    for key, item in value.items():
        known = properties.get(key, others)
        if item is None and _refuses_null(known):
            continue
        filled[key] = _value(known, item, depth + 1)
    for key, known in properties.items():
        if "default" in known and key not in filled:
            filled[key] = _value(known, known["default"], depth + 1)
    return filled


_OPEN: _Schema = {}


def _refuses_null(schema: _Schema) -> bool:
    return "type" in schema and not schema.get("nullable", False)
