"""Simulated people who write objects whose fields are at the limits of their schema.

What the schema allows must break no promise: the largest and the smallest number, the longest
text, an empty list where others have entries, a duration of a nanosecond or of centuries.
"""

from __future__ import annotations

import asyncio
import copy
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from bullpen.api.resources import RESOURCES
from bullpen.provisioners.fake import NAME
from bullpen.sim.operators import CLIENTS, GROUP, SPACE, VIRTUAL, Operator, object_of
from bullpen.sim.truth import Raw

LABELS = {"board": "extreme"}
CHANGES = (1, 1, 1, 2, 3)
"""The possible numbers of fields that are at a limit."""

STAYS = (1.0, 20.0)
"""Seconds until the object is deleted again."""

WIDTHS = {"int32": 31, "int64": 63}
TEXTS = ("", "a", "é" * 63, "a" * 100_000, "a" * 253, "a" * 63)
QUANTITIES = ("0", "1", "9223372036854775807", "1n", "8Ei", "100%")
DURATIONS = ("0s", "1ns", "-1s", "2562047h47m16.854775807s")
TIMES = ("1970-01-01T00:00:00Z", "2969-12-31T23:59:59Z", "9999-12-31T23:59:59Z")
COPIES = 40
"""Equal entries of a list."""

Field = tuple[tuple[str, ...], tuple[Any, ...]]
"""Where a field is, and the values at its limits."""


class Extremist:
    """Creates such an object, and deletes it a moment later."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._count = 0

    async def write(self, chance: random.Random) -> None:
        self._count += 1
        first, *others = chance.choice(tuple(_bases(f"extreme{self._count}", chance)))
        for document in (at_limits(first, chance), *others):
            await self._operator.apply(document)
        await asyncio.sleep(chance.uniform(*STAYS))
        for document in (*others, first):
            await self._operator.delete(document["kind"], SPACE, document["metadata"]["name"])


def _bases(name: str, chance: random.Random) -> Iterator[tuple[Raw, ...]]:
    """Ordinary objects for exporters of their own; the first of each group gets the limits."""
    selector = {"matchLabels": LABELS}
    client = {"name": chance.choice(CLIENTS)}
    lease = {"clientRef": client, "selector": selector, "duration": "10s"}
    yield (object_of(GROUP, "Lease", name, spec=lease),)
    yield (object_of(VIRTUAL, "ExporterSet", name, spec=_pool("fake")),)
    kind = object_of(VIRTUAL, "VirtualTargetClass", name, spec={"provisioner": NAME})
    yield kind, object_of(VIRTUAL, "ExporterSet", name, spec=_pool(name))
    policies = [{"priority": 1, "from": [{"clientSelector": {}}]}]
    rules = {"exporterSelector": selector, "policies": policies}
    yield (object_of(GROUP, "ExporterAccessPolicy", name, spec=rules),)


def _pool(kind: str) -> Raw:
    return {
        "virtualTargetClassName": kind,
        "minAvailableReplicas": 1,
        "maxReplicas": 2,
        "selector": {"matchLabels": LABELS},
        "template": {"metadata": {"labels": LABELS}},
    }


def at_limits(document: Raw, chance: random.Random) -> Raw:
    """A copy of ``document`` with some fields of its spec at a limit of their schema."""
    schema = next(one.schema for one in RESOURCES if one.kind == document["kind"])
    spec = cast("Mapping[str, Any]", schema["properties"])["spec"]
    changed = copy.deepcopy(document)
    fields = tuple(fields_of(spec, changed["spec"]))
    for path, values in chance.sample(fields, chance.choice(CHANGES)):
        _put(changed["spec"], path, chance.choice(values))
    return changed


def fields_of(schema: Mapping[str, Any], value: Any, path: tuple[str, ...] = ()) -> Iterator[Field]:
    """Every field below ``path`` with the values at its limits; ``value`` is what is there now."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    for name, below in properties.items():
        inside = value.get(name) if isinstance(value, Mapping) else None
        yield from fields_of(below, inside, (*path, name))
    if values := _limits(schema, value):
        yield path, values


def _limits(schema: Mapping[str, Any], value: Any) -> tuple[Any, ...]:
    """The values at the limits of a field that has no fields of its own."""
    if "enum" in schema:
        return tuple(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return _texts(schema, QUANTITIES)
    match schema.get("type"):
        case "boolean":
            return False, True
        case "integer":
            most = 2 ** WIDTHS[schema["format"]]
            return schema.get("minimum", -most), 0, schema.get("maximum", most - 1)
        case "string":
            formats = {"duration": DURATIONS, "date-time": TIMES}
            return _texts(schema, formats.get(schema.get("format", ""), TEXTS))
        case "array":
            most = schema.get("maxItems", COPIES)
            return ([], (list(value) * most)[:most]) if value else ([],)
        case "object" if "properties" not in schema:
            return {}, *_maps(schema)
    return ()


def _maps(schema: Mapping[str, Any]) -> Iterator[Raw]:
    """One with a long key, and one with many entries."""
    values = _limits(schema.get("additionalProperties", {}), None) or ("a",)
    yield {"a" * 63: values[-1]}
    yield {f"a{number}": values[0] for number in range(schema.get("maxProperties", COPIES))}


def _texts(schema: Mapping[str, Any], texts: tuple[str, ...]) -> tuple[str, ...]:
    """Those that the schema allows."""
    most, pattern = schema.get("maxLength"), schema.get("pattern", "")
    return tuple(
        text
        for text in texts
        if (most is None or len(text) <= most) and re.search(pattern, text) is not None
    )


def _put(spec: Raw, path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        spec = spec.setdefault(name, {})
    spec[path[-1]] = value
