"""Selectors of devices are split into comparisons that an index answers, and a rest for CEL."""

from __future__ import annotations

import pytest

from bullpen.api.device_selectors import (
    EXPRESSION_BYTES_MAX,
    Comparison,
    Presence,
    parse_expression,
)
from bullpen.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("site == 'brno'", Comparison("site", ("brno",))),
        ('device.site == "brno"', Comparison("site", ("brno",))),
        ("device.attributes.site != 'brno'", Comparison("site", ("brno",), equal=False)),
        ("device.attributes[\"a.b/site\"] == 'x'", Comparison("a.b/site", ("x",))),
        ("device.attributes[\"a.b\"].site == 'x'", Comparison("a.b/site", ("x",))),
        ("slots == 4", Comparison("slots", (4,))),
        ("spare == true", Comparison("spare", (True,))),
        ("site in ['brno', 'prague']", Comparison("site", ("brno", "prague"))),
        ("site in []", Comparison("site", ())),
        ("has(device.site)", Presence("site")),
        ("has(device.attributes.site)", Presence("site")),
    ],
)
def test_a_comparison_with_literals_needs_no_cel_engine(
    text: str, term: Comparison | Presence
) -> None:
    found = parse_expression(text)
    assert found.terms == (term,)
    assert not found.rest


def test_only_the_conjuncts_that_need_an_engine_are_left_for_it() -> None:
    found = parse_expression("site == 'x' && device.slots > 3 && (a || b) && has(device.y)")
    assert found.terms == (Comparison("site", ("x",)), Presence("y"))
    assert found.rest == "(device.slots > 3) && ((a || b))"


@pytest.mark.parametrize(
    "text",
    [
        "site == 'x' || spare == true",
        "spare ? site == 'x' : site == 'y'",
        r"site == 'it\'s'",
        "site == other",
        "'x' == site",
        "device.capacity.mem == 4",
        "has(site)",
        "site == 1.5",
        "site in ['x', other]",
        "device == 'x'",
    ],
)
def test_what_is_no_plain_comparison_is_left_to_the_engine_whole(text: str) -> None:
    found = parse_expression(text)
    assert not found.terms
    assert found.rest == text


def test_operators_inside_a_string_divide_nothing() -> None:
    found = parse_expression("site == 'a && b || c ? d' && x == 1")
    assert found.terms == (Comparison("site", ("a && b || c ? d",)), Comparison("x", (1,)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("a == 1 &&", "lacks an operand"),
        ("(" * 33 + ")" * 33, "nests too deep"),
        ("a == 1)", "closes a bracket"),
        ("(a == 1", "open bracket"),
        ("x" * (EXPRESSION_BYTES_MAX + 1), "more than 10240 bytes"),
    ],
)
def test_a_text_that_cannot_be_an_expression_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        parse_expression(text)
