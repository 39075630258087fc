"""The extremes of what a type can hold, derived from the schema of a kind.

What is generated need not be valid: admission may refuse it. What admission accepts, the
service must be able to live with.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

Json = Any
Path = tuple[str | int, ...]

TIMES = (
    "0001-01-01T00:00:00Z",
    "0001-01-02T00:00:00Z",
    "1969-12-31T23:59:59Z",
    "2969-12-31T23:59:59Z",
    "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59.999999999Z",
    "9999-12-31T23:59:59-00:01",
)
DURATIONS = ("0s", "1ns", "-1ns", "2562047h47m16.854775807s", "-2562047h47m16s", "876000h")
TEXTS = (
    "",
    " ",
    "a",
    "x" * 63,
    "x" * 254,
    "x" * 30_000,
    "\u0000",
    "\ud7ff\U0001f600",
    "../..",
    "%s{}",
)
QUANTITIES = (0, -1, 2**31, 2**63 - 1, "0", "-1", "1e100", "9223372036854775807Ei", "1n", "x")
NUMBERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
FREE_FORM: tuple[Json, ...] = (
    {},
    {"": {"": [[], {}, None, 1e308, -0.0, 2**53 + 1, True, "x" * 10_000]}},
    {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": 1}}}}}}}}},
)


def extremes_of(schema: Json, path: Path) -> Iterator[tuple[Path, Json]]:
    """Every field at or below ``path`` with each of its extremes."""
    for value in _values(schema):
        yield path, value
    for name, part in schema.get("properties", {}).items():
        yield from extremes_of(part, (*path, name))
    if "items" in schema:
        yield from extremes_of(schema["items"], (*path, 0))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from extremes_of(schema["additionalProperties"], (*path, "key"))


def _values(schema: Json) -> tuple[Json, ...]:
    if "enum" in schema:
        return tuple(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return QUANTITIES
    match schema.get("type"), schema.get("format"):
        case "string", "date-time":
            return TIMES
        case "string", "duration":
            return DURATIONS
        case "string", "byte":
            return ("", "AA==", "QUFB" * 10_000)
        case "string", _:
            most = schema.get("maxLength")
            return (*TEXTS, "x" * most) if most else TEXTS
        case "integer", _:
            bounds = [schema[key] for key in ("minimum", "maximum") if key in schema]
            return (*NUMBERS, *bounds)
        case "number", _:
            return (0, -1.5, 1e308)
        case "boolean", _:
            return (True, False)
        case "array", _:
            return ([], [_minimal(schema["items"])] * min(schema.get("maxItems", 3), 100))
        case "object", _:
            free = schema.get("x-kubernetes-preserve-unknown-fields")
            return FREE_FORM if free else ({}, None)
        case _:
            return FREE_FORM


def _minimal(schema: Json) -> Json:
    """The smallest value that a schema is likely to accept."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("x-kubernetes-int-or-string"):
        return 1
    match schema.get("type"), schema.get("format"):
        case "string", "date-time":
            return "2026-01-01T00:00:00Z"
        case "string", "duration":
            return "1h"
        case "string", "byte":
            return "YQ=="
        case "string", _:
            return "a"
        case (("integer" | "number"), _):
            return max(schema.get("minimum", 1), 1)
        case "boolean", _:
            return False
        case "array", _:
            return []
        case _:
            required = schema.get("required", ())
            return {name: _minimal(schema["properties"][name]) for name in required}


def with_value(base: dict[str, Json], schema: Json, path: Path, value: Json) -> dict[str, Json]:
    """``base`` with ``value`` at ``path``, and what is missing on the way made minimal."""
    document = copy.deepcopy(base)
    place: Json = document
    for step, following in itertools.pairwise(path):
        schema = _part(schema, step)
        fresh = [] if isinstance(following, int) else _minimal(schema)
        if isinstance(step, int) and len(place) <= step:
            place.append(fresh)
        elif isinstance(step, str) and step not in place:
            place[step] = fresh
        if not isinstance(place[step], list if isinstance(following, int) else dict):
            place[step] = fresh
        place = place[step]
    last = path[-1]
    if isinstance(last, int) and len(place) <= last:
        place.append(value)
    else:
        place[last] = value
    return document


def _part(schema: Json, step: str | int) -> Json:
    if isinstance(step, int):
        return schema.get("items", {})
    return schema.get("properties", {}).get(step) or schema.get("additionalProperties") or {}
