"""JSON merge patch and JSON patch, against the examples of their RFCs."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.errors import BadRequest, Invalid, Rejected, TooLarge
from bullpen.registry import patches
from bullpen.registry.patches import OPERATIONS_MAX, json_patch, merge_patch

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["x", "y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab~/"), inner),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_examples_of_rfc_7386(target: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy((target, patch))
    assert merge_patch(target, patch) == result
    assert (target, patch) == before


@given(json_values, json_values)
def test_merging_a_patch_twice_is_merging_it_once(target: Any, patch: Any) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        pytest.param(
            {"foo": "bar"},
            [{"op": "add", "path": "/baz", "value": "qux"}],
            {"baz": "qux", "foo": "bar"},
            id="A.1 adding an object member",
        ),
        pytest.param(
            {"foo": ["bar", "baz"]},
            [{"op": "add", "path": "/foo/1", "value": "qux"}],
            {"foo": ["bar", "qux", "baz"]},
            id="A.2 adding an array element",
        ),
        pytest.param(
            {"baz": "qux", "foo": "bar"},
            [{"op": "remove", "path": "/baz"}],
            {"foo": "bar"},
            id="A.3 removing an object member",
        ),
        pytest.param(
            {"foo": ["bar", "qux", "baz"]},
            [{"op": "remove", "path": "/foo/1"}],
            {"foo": ["bar", "baz"]},
            id="A.4 removing an array element",
        ),
        pytest.param(
            {"baz": "qux", "foo": "bar"},
            [{"op": "replace", "path": "/baz", "value": "boo"}],
            {"baz": "boo", "foo": "bar"},
            id="A.5 replacing a value",
        ),
        pytest.param(
            {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
            [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
            {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
            id="A.6 moving a value",
        ),
        pytest.param(
            {"foo": ["all", "grass", "cows", "eat"]},
            [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
            {"foo": ["all", "cows", "eat", "grass"]},
            id="A.7 moving an array element",
        ),
        pytest.param(
            {"baz": "qux", "foo": ["a", 2, "c"]},
            [
                {"op": "test", "path": "/baz", "value": "qux"},
                {"op": "test", "path": "/foo/1", "value": 2},
            ],
            {"baz": "qux", "foo": ["a", 2, "c"]},
            id="A.8 testing a value, success",
        ),
        pytest.param(
            {"foo": "bar"},
            [{"op": "add", "path": "/child", "value": {"grandchild": {}}}],
            {"foo": "bar", "child": {"grandchild": {}}},
            id="A.10 adding a nested member object",
        ),
        pytest.param(
            {"foo": "bar"},
            [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}],
            {"foo": "bar", "baz": "qux"},
            id="A.11 ignoring unrecognized elements",
        ),
        pytest.param(
            {"/": 9, "~1": 10},
            [{"op": "test", "path": "/~01", "value": 10}],
            {"/": 9, "~1": 10},
            id="A.14 escape ordering",
        ),
        pytest.param(
            {"foo": ["bar"]},
            [{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}],
            {"foo": ["bar", ["abc", "def"]]},
            id="A.16 adding an array value",
        ),
        pytest.param(
            {"a": {"b": [1]}},
            [
                {"op": "copy", "from": "/a/b", "path": "/c"},
                {"op": "add", "path": "/c/0", "value": 2},
            ],
            {"a": {"b": [1]}, "c": [2, 1]},
            id="a copy is not a link",
        ),
        pytest.param(
            {"a": 1}, [{"op": "add", "path": "", "value": {"b": 2}}], {"b": 2}, id="the whole"
        ),
        pytest.param(
            {"a": 1}, [{"op": "replace", "path": "", "value": 2}], 2, id="the whole, replaced"
        ),
        pytest.param({"a": 1}, [{"op": "remove", "path": ""}], None, id="the whole, removed"),
        pytest.param(
            {"a": 1}, [{"op": "move", "from": "/a", "path": "/a"}], {"a": 1}, id="onto itself"
        ),
        pytest.param(
            {"a": [1, 2]},
            [{"op": "replace", "path": "/a/1", "value": 3}],
            {"a": [1, 3]},
            id="an item",
        ),
    ],
)
def test_json_patch(target: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy((target, patch))
    assert json_patch(target, patch) == result
    assert (target, patch) == before


@pytest.mark.parametrize(
    ("target", "patch"),
    [
        pytest.param(
            {"baz": "qux"},
            [{"op": "test", "path": "/baz", "value": "bar"}],
            id="A.9 testing a value, error",
        ),
        pytest.param(
            {"foo": "bar"},
            [{"op": "add", "path": "/baz/bat", "value": "qux"}],
            id="A.12 adding to a nonexistent target",
        ),
        pytest.param(
            {"/": 9, "~1": 10},
            [{"op": "test", "path": "/~01", "value": "10"}],
            id="A.15 comparing strings and numbers",
        ),
        pytest.param({"a": True}, [{"op": "test", "path": "/a", "value": 1}], id="true is not one"),
        pytest.param({"a": [1]}, [{"op": "remove", "path": "/a/01"}], id="a leading zero"),
        pytest.param({"a": [1]}, [{"op": "remove", "path": "/a/-"}], id="behind the end"),
        pytest.param({"a": [1]}, [{"op": "add", "path": "/a/2", "value": 1}], id="beyond the end"),
        pytest.param({"a": [1]}, [{"op": "add", "path": "/a/x", "value": 1}], id="no index at all"),
        pytest.param({"a": [1]}, [{"op": "add", "path": "/a/²", "value": 1}], id="not a digit"),
        pytest.param({}, [{"op": "remove", "path": "/a"}], id="removing what is not there"),
        pytest.param({}, [{"op": "replace", "path": "/a", "value": 1}], id="replacing nothing"),
        pytest.param({}, [{"op": "copy", "from": "/a", "path": "/b"}], id="copying nothing"),
        pytest.param({"a": 1}, [{"op": "add", "path": "/a/b", "value": 1}], id="into a scalar"),
        pytest.param(
            {"a": {}}, [{"op": "move", "from": "/a", "path": "/a/b"}], id="moving into itself"
        ),
        pytest.param(
            {"a": [{}, {}]},
            [{"op": "move", "from": "/a/0", "path": "/a/0/b"}],
            id="moving into itself where another would take its place",
        ),
    ],
)
def test_a_patch_that_cannot_be_carried_out_is_invalid(target: Any, patch: Any) -> None:
    before = copy.deepcopy(target)
    with pytest.raises(Invalid):
        json_patch(target, patch)
    assert target == before


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param({}, id="no list"),
        pytest.param(["x"], id="no operation"),
        pytest.param([{"op": "spam", "path": "/a"}], id="an unknown operation"),
        pytest.param([{"op": {}, "path": "/a"}], id="an operation that is no word"),
        pytest.param([{"op": "add", "path": "/a"}], id="no value"),
        pytest.param([{"op": "add", "value": 1}], id="no path"),
        pytest.param([{"op": "move", "path": "/a"}], id="no source"),
        pytest.param([{"op": "remove", "path": "a"}], id="a path that is no pointer"),
        pytest.param([{"op": "remove", "path": 5}], id="a path that is no text"),
    ],
)
def test_what_is_no_patch_is_a_bad_request(patch: Any) -> None:
    with pytest.raises(BadRequest):
        json_patch({"a": 1}, patch)


@pytest.mark.parametrize("op", ["x" * 10_000, "remove", "test"])
@pytest.mark.parametrize("path", ["x" * 10_000, "/" + "x" * 10_000])
def test_a_refusal_does_not_repeat_all_that_was_sent(op: str, path: str) -> None:
    with pytest.raises((BadRequest, Invalid)) as refused:
        json_patch({"a": 1}, [{"op": op, "path": path, "value": 1}])
    assert len(str(refused.value)) < 300


def test_the_operations_of_a_patch_are_bounded() -> None:
    test = {"op": "test", "path": "/a", "value": 1}
    assert json_patch({"a": 1}, [test] * OPERATIONS_MAX) == {"a": 1}
    with pytest.raises(TooLarge):
        json_patch({"a": 1}, [test] * (OPERATIONS_MAX + 1))


def test_copies_cannot_double_a_document_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "COPIED_BYTES_MAX", 10_000)
    double = {"op": "copy", "from": "", "path": "/a"}
    with pytest.raises(TooLarge):
        json_patch({"b": "x" * 100}, [double] * 60)


operations = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]),
        "path": st.sampled_from(["", "/a", "/b", "/a/b", "/a/0", "/a/-", "/~0", "/~1/a"]),
        "from": st.sampled_from(["/a", "/b", "/a/0", "/~1"]),
        "value": json_values,
    }
)


@given(json_values, st.lists(operations, max_size=5))
def test_any_patch_ends_in_a_result_or_a_refusal(target: Any, patch: list[Any]) -> None:
    before = copy.deepcopy((target, patch))
    with contextlib.suppress(Rejected):
        json_patch(target, patch)
    assert (target, patch) == before


@given(json_values, json_values)
def test_what_was_added_is_found_by_a_test(target: Any, value: Any) -> None:
    document = {"a": target}
    added = {"op": "add", "path": "/b", "value": value}
    assert json_patch(document, [added, {**added, "op": "test"}])["b"] == value
