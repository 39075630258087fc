"""Structural defaulting: fills absent fields with the defaults of the schema.

As in Kubernetes, a default is filled in only if its parent object exists, and a null where
null is not allowed counts as absent. Any JSON is accepted and the argument is never
modified; the result is not validated here.

Most writes change one section of an object. A section that is the same object as in a
complete document is complete too, and is passed on unchecked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bullpen.api.document import Document
from bullpen.api.limits import DEPTH_MAX

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
