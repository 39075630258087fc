"""Whatever is written where a selector, an amount or a time belongs: a value, or a sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.errors import BadRequest
from bullpen.kit import durations, fieldselectors, quantities, selectors, times

MESSAGE_LENGTH_MAX = 500

PARSERS: dict[str, Callable[[str], object]] = {
    "label selectors": selectors.parse_labels,
    "field selectors": fieldselectors.parse_fields,
    "quantities": quantities.parse,
    "durations": durations.parse,
    "times": times.parse,
}

pieces = st.sampled_from(
    (
        *("a", "b/c", "=", "==", "!=", "!", " in ", " notin ", "(", ")", ",", ">", "<", "\\"),
        *("1", "-", "+", ".", "e9", "E", "Ki", "m", "h", "ms", "us", "µs", "ns", "P1D", "T"),
        *("2026-01-01", "00:00:00", "Z", "+24:00", "é", "\ud800", "\x00", "٣", "²", "9" * 400),
    )
)
hostile = st.one_of(st.text(max_size=60), st.lists(pieces, max_size=12).map("".join))


def refusal(name: str, text: str) -> str:
    """What is said against the text; empty if nothing is."""
    try:
        PARSERS[name](text)
    except (BadRequest, ValueError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", PARSERS)
@given(text=hostile)
def test_any_text_is_read_or_refused_in_a_short_sentence(name: str, text: str) -> None:
    assert len(refusal(name, text)) < MESSAGE_LENGTH_MAX


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("9" * 1_000_000, id="digits"),
        pytest.param("a," * 500_000, id="terms"),
        pytest.param("(" * 1_000_000, id="brackets"),
        pytest.param("\\" * 999_999, id="escapes"),
        pytest.param("1h" * 500_000, id="hours"),
        pytest.param("1e" + "9" * 100_000, id="an exponent"),
        pytest.param(" " * 1_000_000, id="spaces"),
    ],
)
def test_a_megabyte_is_answered_in_a_short_sentence(name: str, text: str) -> None:
    assert len(refusal(name, text)) < MESSAGE_LENGTH_MAX


def test_a_selector_is_not_even_read_beyond_its_bound() -> None:
    """Half a million terms once kept the whole service busy for half a minute."""
    text = "a," * selectors.TEXT_LENGTH_MAX
    assert refusal("label selectors", text) == "the selector has more than 65536 characters"
    few = ",".join(["a"] * (selectors.REQUIREMENTS_MAX + 1))
    assert refusal("label selectors", few) == "the selector has more than 1000 requirements"
