"""Simulated people who write objects with fields at the extremes of their schema.

What the API accepts must break no promise: the largest and the smallest number, a very long
text, an empty list where others have entries, a duration of a nanosecond or of centuries.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

from bullpen.api.resources import RESOURCES
from bullpen.provisioners.fake import NAME
from bullpen.sim.operators import CLIENTS, GROUP, SPACE, VIRTUAL, Operator, object_of
from bullpen.sim.schema_extremes import extremes_of, with_value
from bullpen.sim.truth import Raw

LABELS = {"board": "extreme"}
CHANGES = (1, 1, 1, 2, 3)
"""The possible numbers of fields that have an extreme value."""

STAYS = (1.0, 20.0)
"""Seconds until the object is deleted again."""


class Extremist:
    """Creates such an object, and deletes it a moment later."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._count = 0

    async def write(self, chance: random.Random) -> None:
        self._count += 1
        first, *others = chance.choice(tuple(_bases(f"extreme{self._count}", chance)))
        for document in (at_extremes(first, chance), *others):
            await self._operator.apply(document)
        await asyncio.sleep(chance.uniform(*STAYS))
        for document in (*others, first):
            await self._operator.delete(document["kind"], SPACE, document["metadata"]["name"])


def _bases(name: str, chance: random.Random) -> Iterator[tuple[Raw, ...]]:
    """Ordinary objects for exporters of their own; the first of each group gets the extremes."""
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


def at_extremes(document: Raw, chance: random.Random) -> Raw:
    """A copy of ``document`` in which some fields of the spec have extreme values."""
    resource = RESOURCES.of_kind(document["apiVersion"], document["kind"])
    assert resource is not None
    schema: Any = resource.schema
    found = [
        (path, value)
        for path, value in extremes_of(schema["properties"]["spec"], ("spec",))
        if path != ("spec",)
    ]
    changed = document
    for path, value in chance.sample(found, chance.choice(CHANGES)):
        changed = with_value(changed, schema, path, value)
    return changed
