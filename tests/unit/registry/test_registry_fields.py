"""Field sets: the algebra, checked against plain sets of paths."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bullpen.registry import fields
from bullpen.registry.fields import Path, from_paths, members

# Few elements and short paths, so that two sets often share parents.
elements = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"y"'])
path_sets = st.sets(st.lists(elements, min_size=1, max_size=3).map(tuple), max_size=6)


@given(path_sets)
def test_a_set_has_exactly_the_paths_it_was_made_of(paths: set[Path]) -> None:
    tree = from_paths(paths)
    found = list(members(tree))
    assert sorted(found) == sorted(paths)
    assert all(fields.has(tree, path) for path in paths)


@given(path_sets, path_sets)
def test_operations_are_those_of_sets_of_paths(left: set[Path], right: set[Path]) -> None:
    a, b = from_paths(left), from_paths(right)
    assert set(members(fields.union(a, b))) == left | right
    assert set(members(fields.intersection(a, b))) == left & right
    assert set(members(fields.difference(a, b))) == left - right


@given(path_sets, path_sets)
def test_no_operation_edits_its_arguments(left: set[Path], right: set[Path]) -> None:
    a, b = from_paths(left), from_paths(right)
    for operation in (fields.union, fields.intersection, fields.difference):
        operation(a, b)
        assert set(members(a)) == left
        assert set(members(b)) == right


@given(path_sets, path_sets)
def test_an_empty_result_is_the_empty_set(left: set[Path], right: set[Path]) -> None:
    """Emptiness is how a manager that owns nothing any more is noticed."""
    a, b = from_paths(left), from_paths(right)
    assert bool(fields.difference(a, b)) == bool(left - right)
    assert bool(fields.intersection(a, b)) == bool(left & right)


@given(path_sets)
def test_what_we_make_is_well_formed(paths: set[Path]) -> None:
    assert fields.is_valid(from_paths(paths))


def test_what_others_make_may_not_be() -> None:
    wrong: list[object] = [1, {"f:a": 1}, {"a": {}}, {"k:1": {}}, {"k:{": {}}, {"f:a": {"x": {}}}]
    assert not any(fields.is_valid(candidate) for candidate in wrong)


def test_a_parent_that_is_a_member_too_is_marked() -> None:
    tree = from_paths([("f:spec",), ("f:spec", "f:a")])
    assert tree == {"f:spec": {".": {}, "f:a": {}}}


def test_elements_are_written_as_kubernetes_writes_them() -> None:
    assert fields.field_element("spec") == "f:spec"
    assert fields.value_element("x") == 'v:"x"'
    assert fields.key_element({"port": 1, "name": "b"}) == 'k:{"name":"b","port":1}'


def test_paths_are_shown_as_kubernetes_shows_them() -> None:
    path = ("f:spec", 'k:{"name":"web","port":80}', "f:tags", 'v:"x"')
    assert fields.display(path) == '.spec[name="web",port=80].tags[="x"]'
    assert fields.display(("i:3",)) == "[3]"
