"""CEL rules are found in schemas, evaluated, and reported where they belong."""

from __future__ import annotations

from typing import Any

import pytest

from bullpen.api.cel import compile_rules, rule_causes
from bullpen.errors import Cause


def schema(rule: str, **facts: str) -> dict[str, Any]:
    return {"x-kubernetes-validations": [{"rule": rule, "message": "no", **facts}]}


def causes(schema_: dict[str, Any], document: Any, old: Any = None) -> list[Cause]:
    return list(rule_causes(compile_rules(schema_), document, old))


@pytest.mark.parametrize(
    ("rule", "value", "holds"),
    [
        pytest.param("self.a > 1", {"a": 2}, True, id="a comparison that holds"),
        pytest.param("self.a > 1", {"a": 1}, False, id="a comparison that does not"),
        pytest.param("has(self.a)", {}, False, id="absence"),
        pytest.param("self.a > 1", {}, False, id="an error is not true"),
        pytest.param("self.a > 1", {"a": "text"}, False, id="nor is a wrong type"),
        pytest.param("self.a", {"a": 1}, False, id="nor is anything but true"),
        pytest.param("self.all(k, size(k) < 3)", {"ab": 1, "a": 2}, True, id="over a map"),
        pytest.param("self.matches('^a+$')", "aaa", True, id="over text"),
    ],
)
def test_a_rule_holds_or_does_not(rule: str, value: Any, holds: bool) -> None:
    assert (causes(schema(rule), value) == []) is holds


def test_a_broken_rule_names_its_place() -> None:
    nested = {
        "properties": {
            "spec": {
                "properties": {"items": {"items": schema("self.n > 0", fieldPath=".n")}},
                **schema("has(self.name)", reason="FieldValueRequired"),
            }
        }
    }
    assert causes(nested, {"spec": {"items": [{"n": 1}, {"n": 0}]}}) == [
        Cause(field="spec", message="Required value: no", reason="FieldValueRequired"),
        Cause(field="spec.items[1].n", message="Invalid value: no", reason="FieldValueInvalid"),
    ]
    assert causes(nested, {}) == []
    assert causes(nested, {"spec": {"name": "a"}}) == []


def test_a_rule_about_the_past_holds_for_updates_only() -> None:
    rule = {"properties": {"spec": schema("self.a == oldSelf.a")}}
    assert causes(rule, {"spec": {"a": 1}}) == []
    assert causes(rule, {"spec": {"a": 1}}, {}) == []
    assert causes(rule, {"spec": {"a": 1}}, {"spec": {"a": 1, "b": 2}}) == []
    assert len(causes(rule, {"spec": {"a": 1}}, {"spec": {"a": 2}})) == 1


def test_a_rule_about_the_past_does_not_look_into_lists() -> None:
    rule = {"properties": {"list": {"items": schema("self.a == oldSelf.a")}}}
    assert causes(rule, {"list": [{"a": 1}]}, {"list": [{"a": 2}]}) == []


def test_what_did_not_change_is_not_asked() -> None:
    rule = {"properties": {"spec": schema("self.a > 1")}}
    assert len(causes(rule, {"spec": {"a": 0}})) == 1
    assert causes(rule, {"spec": {"a": 0}}, {"spec": {"a": 0}}) == []
    assert len(causes(rule, {"spec": {"a": 0}}, {"spec": {"a": -1}})) == 1


def test_a_rule_that_cannot_be_read_is_a_bug() -> None:
    with pytest.raises(RuntimeError, match="Syntax error"):
        compile_rules(schema("self =="))
