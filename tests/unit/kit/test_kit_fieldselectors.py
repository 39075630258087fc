"""Field selectors read, match and print as Kubernetes' do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.errors import BadRequest
from bullpen.kit.selectors import FieldSelector, FieldTerm, parse_fields

DOCUMENT = {
    "metadata": {"name": "x", "labels": {}},
    "spec": {"enabled": True, "off": False, "replicas": 3, "share": 0.5, "odd": ["a"]},
    "involvedObject": {"uid": "u-1"},
}


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        pytest.param("", (), id="nothing"),
        pytest.param(" , ,", (), id="only commas"),
        pytest.param("metadata.name=x", (("metadata.name", "x", True),), id="equal"),
        pytest.param("metadata.name==x", (("metadata.name", "x", True),), id="double equals"),
        pytest.param("metadata.name!=x", (("metadata.name", "x", False),), id="different"),
        pytest.param("a=", (("a", "", True),), id="the empty value"),
        pytest.param("a=b,c!=d", (("a", "b", True), ("c", "d", False)), id="two terms"),
        pytest.param(r"a=b\,c\=d\\", (("a", r"b,c=d" + "\\", True),), id="escapes in a value"),
        pytest.param(" a = b", (("a", " b", True),), id="blanks belong to the value"),
        pytest.param("a=x!y", (("a", "x!y", True),), id="a bang in a value"),
    ],
)
def test_a_field_selector_reads_and_prints(
    text: str, terms: tuple[tuple[str, str, bool], ...]
) -> None:
    selector = parse_fields(text)
    assert selector.terms == tuple(FieldTerm(*term) for term in terms)
    assert parse_fields(str(selector)) == selector
    assert bool(selector) is bool(terms)


@pytest.mark.parametrize(
    ("text", "position", "hint"),
    [
        pytest.param("a", 0, "expected field=value", id="no operator"),
        pytest.param("=b", 0, "expected field=value", id="no field"),
        pytest.param("a=b,c", 4, "found 'c'", id="the second term is wrong"),
        pytest.param("a=b=c", 0, r"written '\='", id="an equals sign in a value"),
        pytest.param(r"a=\\=c", 0, r"written '\='", id="a backslash that does not escape it"),
        pytest.param("a!=b!=c", 0, r"written '\='", id="a chain"),
        pytest.param(r"a=\x", 0, "a backslash stands only before", id="a needless escape"),
        pytest.param("a=\\", 0, "a backslash stands only before", id="an escape of nothing"),
    ],
)
def test_what_cannot_be_read_says_where_and_why(text: str, position: int, hint: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_fields(text)
    assert f"at position {position}:" in caught.value.message
    assert hint in caught.value.message


@pytest.mark.parametrize("end", ["a=b=c", "a" * 10_000])
def test_a_long_selector_is_not_repeated_in_full(end: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_fields("a=b," + "c=d," * 900 + end)
    assert len(caught.value.message) < 500


def test_the_number_of_terms_is_bounded() -> None:
    with pytest.raises(BadRequest, match="more than"):
        parse_fields("a=b," * 1001)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        pytest.param("", True, id="nothing matches everything"),
        pytest.param("metadata.name=x", True, id="a text"),
        pytest.param("metadata.name=y", False, id="another text"),
        pytest.param("metadata.name!=y", True, id="not another text"),
        pytest.param("metadata.name=x,involvedObject.uid=u-2", False, id="all must hold"),
        pytest.param("spec.enabled=true", True, id="true"),
        pytest.param("spec.off=false", True, id="false"),
        pytest.param("spec.replicas=3", True, id="a number"),
        pytest.param("spec.share=0.5", True, id="a fraction"),
        pytest.param("spec.gone=", True, id="what is absent is empty"),
        pytest.param("spec.gone!=x", True, id="and differs from everything"),
        pytest.param("spec.odd.deep=", True, id="so is what lies below a list"),
        pytest.param("spec.odd=", True, id="and what is no scalar"),
    ],
)
def test_a_field_selector_matches(text: str, matches: bool) -> None:
    assert parse_fields(text).matches(DOCUMENT) is matches


paths = st.sampled_from(("a", "metadata.name", "status.phase"))
terms = st.builds(FieldTerm, paths, st.text(max_size=8), st.booleans())


@given(st.lists(terms, max_size=4))
def test_every_field_selector_survives_being_printed(found: list[FieldTerm]) -> None:
    selector = FieldSelector(tuple(found))
    assert parse_fields(str(selector)) == selector


@given(st.text(alphabet="ab=!,\\ .", max_size=15))
def test_any_text_is_read_or_refused_with_a_position(text: str) -> None:
    try:
        selector = parse_fields(text)
    except BadRequest as error:
        told = "at position" in error.message
    else:
        told = parse_fields(str(selector)) == selector
    assert told
