"""Comparing, merging and pruning by schema."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from bullpen.registry import fields
from bullpen.registry.fields import EMPTY, members
from bullpen.registry.managed_fields import compare, field_set, merge, remove, same, with_structs
from support.registry_shapes import SCHEMA, documents


def shown(found: fields.FieldSet) -> set[str]:
    return {fields.display(path) for path in members(found)}


def spec(**parts: Any) -> dict[str, Any]:
    return {"spec": parts}


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        pytest.param({"a": 1, "b": 2}, {"b": 2, "a": 1}, True, id="order of keys means nothing"),
        pytest.param([1, 2], [2, 1], False, id="order of items does"),
        pytest.param(True, 1, False, id="true is not one"),
        pytest.param({"a": [True]}, {"a": [1]}, False, id="not even deep inside"),
        pytest.param(1, 1.0, False, id="one is not one point nought"),
        pytest.param(None, 0, False, id="null is not nothing"),
    ],
)
def test_same(left: object, right: object, equal: bool) -> None:
    assert same(left, right) is equal


@pytest.mark.parametrize(
    ("old", "new", "removed", "modified", "added"),
    [
        pytest.param(spec(size=1), spec(size=2), set(), {".spec.size"}, set(), id="a scalar"),
        pytest.param(
            spec(options={"a": "1"}),
            spec(options={"b": "1"}),
            {".spec.options.a"},
            set(),
            {".spec.options.b"},
            id="entries of a map",
        ),
        pytest.param(
            {}, spec(size=1), set(), set(), {".spec", ".spec.size"}, id="a struct that came"
        ),
        pytest.param(
            spec(args=["a"]), spec(args=["b"]), set(), {".spec.args"}, set(), id="an atomic list"
        ),
        pytest.param(
            spec(point={"x": 1}),
            spec(point={"x": 2}),
            set(),
            {".spec.point"},
            set(),
            id="an atomic map",
        ),
        pytest.param(
            spec(tags=["a", "b"]),
            spec(tags=["b", "c"]),
            {'.spec.tags[="a"]'},
            set(),
            {'.spec.tags[="c"]'},
            id="a set",
        ),
        pytest.param(
            spec(ports=[{"name": "a", "port": 1}]),
            spec(ports=[{"name": "a", "port": 2}]),
            set(),
            {'.spec.ports[name="a"].port'},
            set(),
            id="an item of a list with keys",
        ),
        pytest.param(
            spec(ports=[{"name": "a"}]),
            spec(ports=[{"name": "b"}]),
            {'.spec.ports[name="a"]', '.spec.ports[name="a"].name'},
            set(),
            {'.spec.ports[name="b"]', '.spec.ports[name="b"].name'},
            id="other items of a list with keys",
        ),
        pytest.param(
            spec(ports=[{"name": "a"}]),
            spec(ports=[{"name": "a"}, {"name": "a"}]),
            {'.spec.ports[name="a"]', '.spec.ports[name="a"].name'},
            {".spec.ports"},
            set(),
            id="a list with keys that became ambiguous",
        ),
        pytest.param(
            spec(free={"a": {"b": 1}}),
            spec(free={"a": 1}),
            {".spec.free.a.b"},
            {".spec.free.a"},
            set(),
            id="something that changed its type",
        ),
        pytest.param(
            spec(free=None),
            spec(free={"a": 1}),
            set(),
            set(),
            {".spec.free.a"},
            id="null that was filled",
        ),
        pytest.param(
            spec(free={"a": 1}),
            spec(free=None),
            {".spec.free.a"},
            set(),
            set(),
            id="a map that became null",
        ),
        pytest.param(
            spec(free=None), spec(free={}), set(), {".spec.free"}, set(), id="null that is empty"
        ),
    ],
)
def test_compare(
    old: Any, new: Any, removed: set[str], modified: set[str], added: set[str]
) -> None:
    found = compare(SCHEMA, old, new)
    assert shown(found.removed) == removed
    assert shown(found.modified) == modified
    assert shown(found.added) == added


@given(documents, documents)
def test_comparing_backwards_swaps_came_and_went(old: Any, new: Any) -> None:
    there, back = compare(SCHEMA, old, new), compare(SCHEMA, new, old)
    assert set(members(there.removed)) == set(members(back.added))
    assert set(members(there.modified)) == set(members(back.modified))
    empty = not there.removed and not there.changed
    assert empty == (_unordered(old) == _unordered(new))


def _unordered(value: Any) -> Any:
    """The order of merged lists carries no meaning, so a comparison does not see it."""
    if isinstance(value, dict):
        return {
            key: sorted(map(repr, map(_unordered, item))) if key in ("ports", "tags") else item
            for key, item in sorted(value.items())
            if key != "spec"
        } | {"spec": _unordered(value.get("spec"))}
    return value


@given(documents, documents)
def test_merging_says_everything_the_configuration_says(live: Any, config: Any) -> None:
    merged = merge(SCHEMA, live, config)
    change = compare(SCHEMA, config, merged)
    assert not change.modified
    assert not change.removed
    assert merge(SCHEMA, merged, config) == merged


@given(documents, documents)
def test_merging_takes_nothing_away(live: Any, config: Any) -> None:
    change = compare(SCHEMA, live, merge(SCHEMA, live, config))
    replaced = set(members(change.modified))
    for path in members(change.removed):
        assert any(path[:n] in replaced for n in range(1, len(path))), fields.display(path)


@given(documents)
def test_merging_with_itself_changes_nothing(document: Any) -> None:
    assert merge(SCHEMA, document, document) == document


@pytest.mark.parametrize(
    ("live", "config", "merged"),
    [
        pytest.param(["a", "x", "b"], ["b", "a"], ["x", "b", "a"], id="the configuration's order"),
        pytest.param(["x"], ["n"], ["x", "n"], id="what was there comes first"),
        pytest.param(["a", "x"], ["n", "a"], ["n", "a", "x"], id="what followed still follows"),
        pytest.param(["x", "a", "y", "b"], ["a", "n", "b"], ["x", "a", "y", "n", "b"], id="mixed"),
    ],
)
def test_the_order_of_a_merged_list(live: list[str], config: list[str], merged: list[str]) -> None:
    assert merge(SCHEMA, spec(tags=live), spec(tags=config)) == spec(tags=merged)


def test_a_null_does_not_empty_a_map_others_filled() -> None:
    assert merge(SCHEMA, spec(options={"a": "1"}), spec(options=None)) == spec(options={"a": "1"})
    assert merge(SCHEMA, spec(size=1), spec(size=None)) == spec(size=None)


def test_a_configuration_claims_leaves_items_and_entries_but_not_structs() -> None:
    config = spec(
        size=1,
        options={"a": "1"},
        ports=[{"name": "a", "port": 1}],
        tags=["x"],
        args=["y"],
        point={"x": 1},
        free={"deep": {"er": 1}},
    )
    assert shown(field_set(SCHEMA, config)) == {
        ".spec.size",
        ".spec.options.a",
        '.spec.ports[name="a"]',
        '.spec.ports[name="a"].name',
        '.spec.ports[name="a"].port',
        '.spec.tags[="x"]',
        ".spec.args",
        ".spec.point",
        ".spec.free.deep",
        ".spec.free.deep.er",
    }
    assert shown(field_set(SCHEMA, spec(options={}, free=None))) == {".spec.options", ".spec.free"}
    assert shown(field_set(SCHEMA, spec(ports=[], tags=[]))) == {".spec.ports", ".spec.tags"}


@given(documents)
def test_removing_everything_claimed_leaves_nothing_to_claim(document: Any) -> None:
    claimed = with_structs(SCHEMA, field_set(SCHEMA, document))
    assert field_set(SCHEMA, remove(SCHEMA, document, claimed)) == EMPTY


@given(documents, documents)
def test_removing_takes_exactly_what_is_named(document: Any, other: Any) -> None:
    unwanted = field_set(SCHEMA, other)
    kept = remove(SCHEMA, document, unwanted)
    before, after = (set(members(field_set(SCHEMA, d))) for d in (document, kept))
    named = set(members(unwanted))
    gone = {path for path in before if any(path[:n] in named for n in range(1, len(path) + 1))}
    # Containers that were emptied are claimed as empty, which is no field of the document's.
    assert {path for path in after if path in before} == before - gone


def test_a_set_that_marks_the_whole_object_means_nothing_by_it() -> None:
    """Nobody owns an object as a whole; but a client may hand in such a claim."""
    assert with_structs(SCHEMA, {".": {}, "f:spec": {"f:size": {}}}) == {
        "f:spec": {".": {}, "f:size": {}}
    }
