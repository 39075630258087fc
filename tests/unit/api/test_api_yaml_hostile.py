"""Manifests made to hurt: bombs, riddles and halves are refused in a sentence."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api import yaml
from bullpen.errors import BadRequest

BOMB = "\n".join(
    [
        "a: &a [x, x, x, x, x, x, x, x, x]",
        *(
            f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]"
            for before, name in zip("abcdefgh", "bcdefghi", strict=True)
        ),
    ]
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(BOMB, "more than 1000000 values", id="a billion laughs"),
        pytest.param("a: &a [*a]", "nested deeper|found unconstructable", id="a list of itself"),
        pytest.param("a: &a {b: *a}", "nested deeper|recursive", id="a mapping of itself"),
        pytest.param("[" * 5_000, "nested deeper", id="brackets that never close"),
        pytest.param("a: 1\nb: 2\na: 3", "key 'a' is given twice", id="a key twice"),
        pytest.param('a: "\\ud800"', "half a character", id="half a character"),
        pytest.param('"\\udfff": 1', "half a character", id="half a character as a key"),
        pytest.param("? [a]\n: b", ".", id="a list as a key"),
        pytest.param("1: a", "is not text", id="a number as a key"),
        pytest.param("!!python/name:os.system x", ".", id="a name of Python's"),
        pytest.param("!!binary x", ".", id="YAML's own binary"),
        pytest.param("a: !!timestamp 2026-01-01", ".", id="YAML's own time"),
    ],
)
def test_a_manifest_made_to_hurt_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        yaml.load_manifests(text)


def test_aliases_of_a_sensible_size_are_written_out() -> None:
    (found,) = yaml.load_manifests("base: &b {x: 1}\none: *b\ntwo: {<<: *b, y: 2}")
    assert found == {"base": {"x": 1}, "one": {"x": 1}, "two": {"x": 1, "y": 2}}


pieces = st.sampled_from(
    (
        *("&a ", "*a", "[", "]", "{", "}", ": ", "- ", "\n", "  ", "? ", "| ", "> ", "'", '"'),
        *("<<", "!!str ", "!!set ", "---\n", "...\n", "%YAML 1.1\n", "\t", "1e999", ".nan", "0o9"),
    )
)
texts = st.one_of(
    st.text(max_size=200), st.binary(max_size=100), st.lists(pieces, max_size=20).map("".join)
)


@given(texts)
def test_any_text_is_read_as_json_could_say_it_or_refused(text: str | bytes) -> None:
    for load in (yaml.load, yaml.load_manifests):
        try:
            found = load(text)
        except BadRequest:
            continue
        json.dumps(found).encode()
