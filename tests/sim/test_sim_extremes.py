"""Objects at the limits of their schema, as the simulator writes them."""

from __future__ import annotations

import random

from bullpen.sim.extremes import at_limits, fields_of
from bullpen.sim.operators import GROUP, object_of

LEASE = object_of(GROUP, "Lease", "a", spec={"clientRef": {"name": "alice"}, "duration": "10s"})


def test_every_field_of_a_schema_reaches_its_limits() -> None:
    schema = {
        "properties": {
            "size": {"type": "integer", "format": "int32", "minimum": 0},
            "rule": {"type": "string", "enum": ["A", "B"]},
            "name": {"type": "string", "maxLength": 63, "pattern": "^a"},
            "below": {"properties": {"on": {"type": "boolean"}}},
            "tags": {
                "type": "object",
                "maxProperties": 2,
                "additionalProperties": {"type": "string"},
            },
            "list": {"type": "array", "maxItems": 3, "items": {"type": "string"}},
            "begin": {"type": "string", "format": "date-time"},
        }
    }
    fields = dict(fields_of(schema, {"list": ["x"]}))
    assert fields["size",] == (0, 0, 2**31 - 1)
    assert fields["rule",] == ("A", "B")
    assert fields["name",] == ("a", "a" * 63)
    assert fields["below", "on"] == (False, True)
    assert fields["list",] == ([], ["x", "x", "x"])
    empty, long, many = fields["tags",]
    assert (empty, [len(key) for key in long], len(many)) == ({}, [63], 2)
    assert "1970-01-01T00:00:00Z" in fields["begin",]
    assert len(fields) == 7


def test_a_document_differs_in_at_most_three_fields_and_the_original_stays() -> None:
    found = [at_limits(LEASE, random.Random(seed)) for seed in range(50)]
    assert LEASE["spec"] == {"clientRef": {"name": "alice"}, "duration": "10s"}
    assert any(one["spec"].get("duration") == "1ns" for one in found)
    assert any("tags" in one["spec"] for one in found)
    for one in found:
        assert one["metadata"] == LEASE["metadata"]
        names = {*one["spec"], *LEASE["spec"]}
        changed = [n for n in names if one["spec"].get(n) != LEASE["spec"].get(n)]
        assert len(changed) <= 3
