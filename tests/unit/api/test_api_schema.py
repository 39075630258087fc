"""A definition says everything once: its schema follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar

import pytest

from bullpen.api import schema
from bullpen.api.fields import Kind, Rule, Struct, about
from bullpen.api.paths import walk, written
from bullpen.api.validation import (
    compile_schema,
    duplicate_causes,
    keyed_lists,
    schema_causes,
    unknown_fields,
)


class Colour(StrEnum):
    RED = "Red"
    BLUE = "Blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Struct):
    """A part, described over
    two lines with ``code`` in it.
    """

    atomic: ClassVar[bool] = True
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(rule="true", message="never", field_path=".name", reason="FieldValueRequired"),
        Rule(rule="self.x", message="plain"),
    )

    name: str = field(metadata=about("Its name.", required=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing(Struct):
    """Has no fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Kind):
    """A whole."""

    api_version: ClassVar[str] = "example.com/v1"
    kind: ClassVar[str] = "Whole"

    text: str = field(default="a", metadata=about("Text.", defaulted=True, max_length=9))
    maybe: str = field(default="", metadata=about("Text.", nullable=True))
    number: int = field(default=0, metadata=about("A number.", minimum=1, format="int32"))
    long: int = field(default=0, metadata=about("A number."))
    flag: bool = field(default=False, metadata=about("A flag."))
    moment: datetime | None = field(default=None, metadata=about("A time."))
    length: timedelta = field(
        default=timedelta(seconds=90), metadata=about("A duration.", defaulted=True)
    )
    pause: timedelta = field(default=timedelta(), metadata=about("A duration.", default="0s"))
    colour: Colour = field(default=Colour.RED, metadata=about("A colour.", defaulted=True))
    amounts: Mapping[str, int | str] = field(
        default_factory=dict, metadata=about("Amounts.", items={"pattern": "^[0-9]+$"})
    )
    parts: tuple[Part, ...] = field(default=(), metadata=about("Parts.", list_keys=("name",)))
    words: tuple[str, ...] = field(
        default=(), metadata=about("Words.", list_type="set", items={"minLength": 1})
    )
    free: Mapping[str, object] = field(default_factory=dict, metadata=about("Anything."))
    anything: object = field(default=None, metadata=about("Anything at all."))
    part: Part | None = field(default=None, metadata=about("A part of the whole."))
    nothing: Nothing = field(default=Nothing(), metadata=about("Nothing.", preserve_unknown=True))


PART = {
    "description": "A part, described over two lines with code in it.",
    "type": "object",
    "properties": {"name": {"type": "string", "description": "Its name."}},
    "required": ["name"],
    "x-kubernetes-map-type": "atomic",
    "x-kubernetes-validations": [
        {
            "rule": "true",
            "message": "never",
            "fieldPath": ".name",
            "reason": "FieldValueRequired",
        },
        {"rule": "self.x", "message": "plain"},
    ],
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("text", {"type": "string", "default": "a", "maxLength": 9}),
        ("maybe", {"type": "string", "nullable": True}),
        ("number", {"type": "integer", "format": "int32", "minimum": 1}),
        ("long", {"type": "integer", "format": "int64"}),
        ("flag", {"type": "boolean"}),
        ("moment", {"type": "string", "format": "date-time"}),
        ("length", {"type": "string", "format": "duration", "default": "1m30s"}),
        ("pause", {"type": "string", "format": "duration", "default": "0s"}),
        ("colour", {"type": "string", "enum": ["Red", "Blue"], "default": "Red"}),
        (
            "amounts",
            {
                "type": "object",
                "additionalProperties": {
                    "x-kubernetes-int-or-string": True,
                    "pattern": "^[0-9]+$",
                },
            },
        ),
        (
            "parts",
            {
                "type": "array",
                "items": PART,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
        (
            "words",
            {
                "type": "array",
                "items": {"type": "string", "minLength": 1},
                "x-kubernetes-list-type": "set",
            },
        ),
        ("free", {"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
        ("anything", {"x-kubernetes-preserve-unknown-fields": True}),
        ("part", PART | {"description": "A part of the whole."}),
        ("nothing", {"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
        ("kind", {"type": "string"}),
        ("apiVersion", {"type": "string"}),
    ],
)
def test_a_field_becomes_a_property(name: str, expected: dict[str, Any]) -> None:
    found = dict(schema.of(Whole)["properties"][name])
    if "description" not in expected:
        assert found.pop("description")
    assert found == expected


def test_a_kind_becomes_an_object() -> None:
    whole = schema.of(Whole)
    assert whole["type"] == "object"
    assert whole["description"] == "A whole."
    assert "required" not in whole
    assert "properties" not in schema.of(Nothing)


@pytest.mark.parametrize(
    ("document", "fields"),
    [
        pytest.param({"maybe": None, "anything": None}, [], id="null where it is allowed"),
        pytest.param({"text": None}, ["text"], id="null where it is not"),
        pytest.param({"anything": [{}]}, [], id="anything at all"),
        pytest.param({"long": 2**63 - 1}, [], id="64 bits"),
        pytest.param({"number": 2**31}, ["number"], id="32 bits"),
        pytest.param({"number": 0}, ["number"], id="a minimum of its own"),
        pytest.param({"number": 3.0}, [], id="a whole number with a point"),
        pytest.param({"number": True}, ["number"], id="a flag is no number"),
        pytest.param({"amounts": {"a": 1, "b": "1"}}, [], id="numbers or text"),
        pytest.param({"amounts": {"a": "x"}}, ["amounts.a"], id="not just any text"),
        pytest.param({"words": ["", "a"]}, ["words[0]"], id="limits of items"),
        pytest.param({"moment": "2026-01-31T12:00:00Z"}, [], id="a time"),
        pytest.param({"moment": "0001-01-01T00:00:00+10:00"}, ["moment"], id="before all times"),
    ],
)
def test_the_schema_is_enforced(document: dict[str, Any], fields: list[str]) -> None:
    validator = compile_schema(schema.of(Whole))
    assert [cause.field for cause in schema_causes(validator, document)] == fields


def test_a_list_that_is_too_long_is_refused() -> None:
    validator = compile_schema({"properties": {"a": {"type": "array", "maxItems": 1}}})
    (cause,) = schema_causes(validator, {"a": [1, 2]})
    assert cause.message == "Too many: must have at most 1 items"


def test_a_list_that_is_too_short_is_refused() -> None:
    validator = compile_schema({"properties": {"a": {"type": "array", "minItems": 1}}})
    (cause,) = schema_causes(validator, {"a": []})
    assert cause.message == "Invalid value: []: should have at least 1 items"


def test_sets_and_keyed_lists_hold_nothing_twice() -> None:
    lists = tuple(keyed_lists(schema.of(Whole)))
    document = {"words": ["a", "b", "a"], "parts": [{"name": "x"}, {"name": "y"}, {"name": "x"}]}
    found = [(cause.field, cause.message) for cause in duplicate_causes(lists, document)]
    assert found == [
        ("parts[2]", 'Duplicate value: {"name": "x"}'),
        ("words[2]", 'Duplicate value: "a"'),
    ]


def test_an_object_open_to_more_fields_has_no_unknown_ones() -> None:
    open_ended = {
        "properties": {"a": {"properties": {"b": {}}}},
        "x-kubernetes-preserve-unknown-fields": True,
    }
    assert unknown_fields(open_ended, {"x": 1, "a": {"b": 1, "c": 2}}) == ("a.c",)


def test_paths_are_written_as_kubernetes_writes_them() -> None:
    assert written(("spec", "policies", 0, "from")) == "spec.policies[0].from"
    assert written(()) == ""


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (("a", "b"), [("a.b", 1)]),
        (("list", "*", "x"), [("list[0].x", 1), ("list[2].x", 2)]),
        (("a", "b", "c"), []),
        (("a", "*"), []),
        (("gone", "b"), []),
        (("null",), []),
        ((), [("", {"a": {"b": 1}, "list": [{"x": 1}, 7, {"x": 2}], "null": None})]),
    ],
)
def test_walking_passes_over_what_is_not_there(pattern: tuple[str, ...], found: Any) -> None:
    document = {"a": {"b": 1}, "list": [{"x": 1}, 7, {"x": 2}], "null": None}
    assert list(walk(document, pattern)) == found
