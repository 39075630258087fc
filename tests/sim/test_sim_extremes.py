"""Objects at the extremes of their schema, as the simulator writes them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bullpen.sim.extremes import at_extremes
from bullpen.sim.operators import GROUP, object_of
from bullpen.sim.schema_extremes import extremes_of, with_value

LEASE = object_of(GROUP, "Lease", "a", spec={"clientRef": {"name": "alice"}, "duration": "10s"})
SCHEMA: dict[str, Any] = {
    "properties": {
        "size": {"type": "integer", "minimum": -7},
        "rule": {"type": "string", "enum": ["A", "B"]},
        "name": {"type": "string", "maxLength": 12},
        "below": {"properties": {"on": {"type": "boolean"}}},
        "list": {"type": "array", "maxItems": 5, "items": {"type": "integer"}},
    }
}


def test_every_field_of_a_schema_has_its_extremes() -> None:
    found: dict[Any, list[Any]] = {}
    for path, value in extremes_of(SCHEMA, ()):
        found.setdefault(path, []).append(value)
    assert -7 in found["size",]
    assert 2**63 - 1 in found["size",]
    assert found["rule",] == ["A", "B"]
    assert "x" * 12 in found["name",]
    assert found["below", "on"] == [True, False]
    assert [len(value) for value in found["list",]] == [0, 5]
    assert 0 in found["list", 0]


def test_a_value_is_put_where_nothing_was() -> None:
    changed = with_value({"size": 1}, SCHEMA, ("below", "on"), True)
    assert changed == {"size": 1, "below": {"on": True}}
    assert with_value(changed, SCHEMA, ("list", 0), 3)["list"] == [3]


@pytest.mark.parametrize("before", [None, "x", [None]])
def test_a_value_replaces_what_can_have_no_fields(before: Any) -> None:
    assert with_value({"below": before}, SCHEMA, ("below", "on"), True) == {"below": {"on": True}}


def test_few_fields_change_and_the_original_stays() -> None:
    found = [at_extremes(LEASE, random.Random(seed)) for seed in range(400)]
    assert LEASE["spec"] == {"clientRef": {"name": "alice"}, "duration": "10s"}
    assert any(one["spec"].get("duration") == "1ns" for one in found)
    assert any("tags" in one["spec"] for one in found)
    for one in found:
        assert one["metadata"] == LEASE["metadata"]
        names = {*one["spec"], *LEASE["spec"]}
        changed = [n for n in names if one["spec"].get(n) != LEASE["spec"].get(n)]
        assert len(changed) <= 3
