"""Strategic merge patch, one directive at a time."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bullpen.errors import BadRequest
from bullpen.registry.patches import strategic_patch

SCHEMA: dict[str, Any] = {
    "properties": {
        "ports": {
            "x-kubernetes-patch-strategy": "merge",
            "x-kubernetes-patch-merge-key": "port",
            "items": {"properties": {"inner": {"x-kubernetes-list-type": "set"}}},
        },
        "conditions": {
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
        "finalizers": {"x-kubernetes-patch-strategy": "merge"},
        "whole": {"x-kubernetes-patch-strategy": "replace"},
        "plain": {},
    }
}


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        pytest.param({"a": 1}, {"b": 2}, {"a": 1, "b": 2}, id="a field is set"),
        pytest.param({"a": 1}, {"a": None}, {}, id="a null removes"),
        pytest.param({}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}, id="nulls are not stored"),
        pytest.param({"m": {"a": 1}}, {"m": {"b": 2}}, {"m": {"a": 1, "b": 2}}, id="maps merge"),
        pytest.param({"plain": [1]}, {"plain": [2]}, {"plain": [2]}, id="plain lists are replaced"),
        pytest.param(
            {"ports": [{"port": 1, "a": 1}, {"port": 2}]},
            {"ports": [{"port": 1, "b": 1}, {"port": 3}]},
            {"ports": [{"port": 1, "a": 1, "b": 1}, {"port": 2}, {"port": 3}]},
            id="keyed lists merge by their key",
        ),
        pytest.param(
            {"conditions": [{"type": "A", "status": "x"}]},
            {"conditions": [{"type": "A", "status": "y"}]},
            {"conditions": [{"type": "A", "status": "y"}]},
            id="so do lists whose type says map",
        ),
        pytest.param(
            {"finalizers": ["a"]},
            {"finalizers": ["b", "a"]},
            {"finalizers": ["a", "b"]},
            id="merged lists of values have no duplicates",
        ),
        pytest.param(
            {"ports": [{"port": 1, "inner": ["a"]}]},
            {"ports": [{"port": 1, "inner": ["b"]}]},
            {"ports": [{"port": 1, "inner": ["a", "b"]}]},
            id="items follow their own schema",
        ),
        pytest.param(
            {"ports": [{"port": 1}, {"port": 2}]},
            {"ports": [{"$patch": "delete", "port": 1}]},
            {"ports": [{"port": 2}]},
            id="$patch delete removes an item",
        ),
        pytest.param(
            {"ports": [{"port": 1}]},
            {"ports": [{"$patch": "replace"}, {"port": 2}]},
            {"ports": [{"port": 2}]},
            id="$patch replace replaces a list",
        ),
        pytest.param(
            {"m": {"a": 1}}, {"m": {"$patch": "replace", "b": 2}}, {"m": {"b": 2}}, id="or a map"
        ),
        pytest.param(
            {"m": {"a": 1}},
            {"m": {"$patch": "delete"}},
            {"m": {}},
            id="$patch delete empties a map",
        ),
        pytest.param({}, {"m": {"$patch": "delete"}}, {}, id="and makes none"),
        pytest.param(
            {"finalizers": ["a", "b", "c"]},
            {"$deleteFromPrimitiveList/finalizers": ["a", "c"]},
            {"finalizers": ["b"]},
            id="$deleteFromPrimitiveList removes values",
        ),
        pytest.param(
            {},
            {"$deleteFromPrimitiveList/finalizers": ["a"]},
            {},
            id="also from a list that is not there",
        ),
        pytest.param(
            {"m": {"a": 1, "b": 2}},
            {"m": {"$retainKeys": ["b", "c"], "c": 3}},
            {"m": {"b": 2, "c": 3}},
            id="$retainKeys clears the rest",
        ),
        pytest.param(
            {"finalizers": ["a"]},
            {"$setElementOrder/finalizers": ["b", "a"], "finalizers": ["b"]},
            {"finalizers": ["a", "b"]},
            id="$setElementOrder is not stored",
        ),
        pytest.param(
            {"whole": {"a": 1}},
            {"whole": {"b": 2}},
            {"whole": {"b": 2}},
            id="replace means replace",
        ),
        pytest.param({"a": [1]}, {"a": {"b": 1}}, {"a": {"b": 1}}, id="another type replaces"),
        pytest.param(
            {"ports": []},
            {"ports": [{"port": 1, "x": {"$patch": "delete"}, "y": None}]},
            {"ports": [{"port": 1}]},
            id="directives in new items are not stored",
        ),
    ],
)
def test_strategic_patch(target: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy((target, patch))
    assert strategic_patch(SCHEMA, target, patch) == result
    assert (target, patch) == before


@pytest.mark.parametrize(
    ("target", "patch"),
    [
        pytest.param({}, [], id="no object"),
        pytest.param({"m": {}}, {"m": {"$patch": "explode"}}, id="an unknown directive"),
        pytest.param({"ports": []}, {"ports": [{"a": 1}]}, id="an item without its key"),
        pytest.param({"ports": []}, {"ports": [5]}, id="an item that is no object"),
        pytest.param({}, {"$retainKeys": "a"}, id="keys to retain that are no list"),
        pytest.param({}, {"$retainKeys": ["a"], "b": 1}, id="a field not among the retained"),
        pytest.param({}, {"$deleteFromPrimitiveList/a": 1}, id="values that are no list"),
    ],
)
def test_a_malformed_patch_is_refused(target: Any, patch: Any) -> None:
    with pytest.raises(BadRequest):
        strategic_patch(SCHEMA, target, patch)
