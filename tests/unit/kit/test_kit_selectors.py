"""Label selectors read, match and print as Kubernetes' do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.errors import BadRequest
from bullpen.kit.selectors import (
    EVERYTHING,
    REQUIREMENTS_MAX,
    Operator,
    Requirement,
    Selector,
    from_parts,
    parse_labels,
    requirement,
)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        pytest.param("", "", id="nothing selects everything"),
        pytest.param(" \t\r\n", "", id="nor do blanks"),
        pytest.param("a=b", "a=b", id="equality"),
        pytest.param("a==b", "a=b", id="double equals is the same"),
        pytest.param("a!=b", "a notin (b)", id="inequality becomes notin, as upstream has it"),
        pytest.param("a", "a", id="presence"),
        pytest.param("!a", "!a", id="absence"),
        pytest.param(" ! a ", "!a", id="blanks around the bang"),
        pytest.param("a in (x,y)", "a in (x,y)", id="one of several"),
        pytest.param("a in (y, x ,y)", "a in (x,y)", id="values are sorted and once each"),
        pytest.param("a in(x)", "a in (x)", id="no blank before the parenthesis"),
        pytest.param("a notin (x,y)", "a notin (x,y)", id="none of several"),
        pytest.param("a in ()", "a in ()", id="an empty list holds the empty value"),
        pytest.param("a in (x,,y)", "a in (,x,y)", id="an empty value between"),
        pytest.param("a in (,x)", "a in (,x)", id="an empty value first"),
        pytest.param("a in (x,)", "a in (,x)", id="an empty value last"),
        pytest.param("a=", "a=", id="the empty value"),
        pytest.param("a= ,b", "a=,b", id="the empty value before another requirement"),
        pytest.param("a!=", "a notin ()", id="not the empty value"),
        pytest.param("b=1,a=2", "a=2,b=1", id="requirements are sorted by key"),
        pytest.param("a=1,a!=2,a", "a=1,a notin (2),a", id="one key keeps its order"),
        pytest.param("in in (in,notin)", "in in (in,notin)", id="the words are also names"),
        pytest.param("notin=in", "notin=in", id="the words are also values"),
        pytest.param("n>1,m<5", "m<5,n>1", id="comparisons"),
        pytest.param("ex.com/a-b_c.D = v", "ex.com/a-b_c.D=v", id="prefixed keys"),
        pytest.param("a\tin\n(x)\r,b", "a in (x),b", id="any blank separates"),
    ],
)
def test_a_selector_reads_and_prints(text: str, canonical: str) -> None:
    selector = parse_labels(text)
    assert str(selector) == canonical
    assert parse_labels(canonical) == selector
    assert bool(selector) is bool(canonical)


@pytest.mark.parametrize(
    ("text", "position", "hint"),
    [
        pytest.param("a,", 2, "found the end, expected a label key", id="nothing after a comma"),
        pytest.param(",a", 0, "found ',', expected a label key", id="nothing before a comma"),
        pytest.param("=b", 0, "found '=', expected a label key", id="no key"),
        pytest.param("!", 1, "found the end, expected a label key", id="a lonely bang"),
        pytest.param("!!a", 1, "found '!'", id="two bangs"),
        pytest.param("!a=b", 2, "joined by ','", id="absence takes no value"),
        pytest.param("a b", 2, "an operator: =, ==, !=", id="two words"),
        pytest.param("a (b)", 2, "an operator", id="a list without a word"),
        pytest.param("a=b c", 4, "joined by ','", id="a blank in a value"),
        pytest.param("a==b==c", 4, "joined by ','", id="a chain"),
        pytest.param("a!==b", 3, "expected a value", id="an operator too many"),
        pytest.param("a=(b)", 2, "expected a value", id="a list after equals"),
        pytest.param("a in b", 5, "stand in parentheses", id="no list after in"),
        pytest.param("a in (b", 7, "closed by ')'", id="an open list"),
        pytest.param("a in (b c)", 8, "separated by ','", id="no comma in a list"),
        pytest.param("a in (=)", 6, "expected a value", id="an operator in a list"),
        pytest.param("x=1,a=b||c", 4, "value 'b||c'", id="an impossible value"),
        pytest.param("a=ö", 0, "value 'ö'", id="letters of other alphabets"),
        pytest.param("A/b/c=d", 0, "before '/'", id="an impossible key"),
        pytest.param("a>b", 0, "needs a whole number", id="comparing with a word"),
        pytest.param("a>", 0, "needs a whole number", id="comparing with nothing"),
        pytest.param("a<-1", 0, "needs a whole number", id="no label is negative"),
    ],
)
def test_what_cannot_be_read_says_where_and_why(text: str, position: int, hint: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_labels(text)
    assert f"at position {position}:" in caught.value.message
    assert hint in caught.value.message


@pytest.mark.parametrize("start", ["a=", "", "a ", "a in x"])
def test_a_long_selector_is_not_repeated_in_full(start: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_labels(start + "b" * 10_000 + "=")
    assert len(caught.value.message) < 500


def test_the_number_of_requirements_is_bounded() -> None:
    assert parse_labels(",".join(["a"] * REQUIREMENTS_MAX))
    with pytest.raises(BadRequest, match="more than"):
        parse_labels(",".join(["a"] * (REQUIREMENTS_MAX + 1)))


LABELS = {"board": "rpi4", "n": "5", "empty": "", "word": "five"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        pytest.param("", True, id="nothing matches everything"),
        pytest.param("board=rpi4", True, id="equal"),
        pytest.param("board=rpi5", False, id="not equal"),
        pytest.param("gone=x", False, id="an absent label equals nothing"),
        pytest.param("gone=", False, id="absent is not empty"),
        pytest.param("empty=", True, id="empty is empty"),
        pytest.param("board!=rpi5", True, id="different"),
        pytest.param("board!=rpi4", False, id="not different"),
        pytest.param("gone!=x", True, id="an absent label differs from everything"),
        pytest.param("board in (a,rpi4)", True, id="in"),
        pytest.param("board in (a)", False, id="not in"),
        pytest.param("gone in (a)", False, id="absent is in no list"),
        pytest.param("gone in ()", False, id="not even the empty one"),
        pytest.param("board notin (a)", True, id="notin"),
        pytest.param("board notin (rpi4)", False, id="not notin"),
        pytest.param("gone notin (a)", True, id="absent is notin every list"),
        pytest.param("board", True, id="present"),
        pytest.param("gone", False, id="not present"),
        pytest.param("!gone", True, id="absent"),
        pytest.param("!board", False, id="not absent"),
        pytest.param("n>4", True, id="greater"),
        pytest.param("n>5", False, id="not greater"),
        pytest.param("n<6", True, id="less"),
        pytest.param("n<5", False, id="not less"),
        pytest.param("gone<5", False, id="absent compares with nothing"),
        pytest.param("word>1", False, id="a word compares with nothing"),
        pytest.param("board=rpi4,gone", False, id="all must hold"),
    ],
)
def test_a_selector_matches(text: str, matches: bool) -> None:
    assert parse_labels(text).matches(LABELS) is matches


def test_the_object_form_means_the_same() -> None:
    selector = from_parts(
        {"b": "1", "a": "2"},
        (
            ("c", "In", ("y", "x")),
            ("d", "NotIn", ("z",)),
            ("e", "Exists", ()),
            ("f", "DoesNotExist", ()),
        ),
    )
    assert str(selector) == "a=2,b=1,c in (x,y),d notin (z),e,!f"
    assert parse_labels(str(selector)) == selector
    assert selector.equalities() == {"a": "2", "b": "1"}


def test_an_empty_object_selects_everything() -> None:
    assert from_parts({}) == EVERYTHING
    assert EVERYTHING.matches({})
    assert not EVERYTHING


@pytest.mark.parametrize(
    ("operator", "values", "hint"),
    [
        pytest.param("Near", ("x",), "known are In, NotIn", id="an unknown operator"),
        pytest.param("in", ("x",), "known are In, NotIn", id="the object form has capitals"),
        pytest.param("In", (), "at least one value", id="in nothing"),
        pytest.param("NotIn", (), "at least one value", id="notin nothing"),
        pytest.param("Exists", ("x",), "takes no values", id="presence of a value"),
        pytest.param("DoesNotExist", ("x",), "takes no values", id="absence of a value"),
        pytest.param("In", ("a b",), "value 'a b'", id="an impossible value"),
    ],
)
def test_an_object_form_that_makes_no_sense_is_refused(
    operator: str, values: tuple[str, ...], hint: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        from_parts({}, (("key", operator, values),))
    assert hint in caught.value.message


def test_an_impossible_key_is_refused() -> None:
    with pytest.raises(BadRequest, match="before '/'"):
        from_parts({"/x": "y"})


def test_equality_needs_exactly_one_value() -> None:
    with pytest.raises(BadRequest, match="exactly one value"):
        requirement("a", Operator.EQUALS, ("b", "c"))


keys = st.sampled_from(("a", "b", "ex.com/c", "in", "notin"))
values = st.sampled_from(("", "x", "y", "5", "in"))
requirements = st.one_of(
    st.builds(lambda k, v: requirement(k, Operator.EQUALS, (v,)), keys, values),
    st.builds(
        requirement,
        keys,
        st.sampled_from((Operator.IN, Operator.NOT_IN)),
        st.lists(values, min_size=1, max_size=3),
    ),
    st.builds(requirement, keys, st.sampled_from((Operator.EXISTS, Operator.DOES_NOT_EXIST))),
    st.builds(
        lambda k, o, n: requirement(k, o, (str(n),)),
        keys,
        st.sampled_from((Operator.GREATER_THAN, Operator.LESS_THAN)),
        st.integers(0, 9),
    ),
)


@given(st.lists(requirements, max_size=5))
def test_the_canonical_text_reads_back_as_the_same_selector(found: list[Requirement]) -> None:
    selector = Selector(tuple(sorted(found, key=lambda item: item.key)))
    assert parse_labels(str(selector)) == selector


@given(st.dictionaries(keys, values), st.lists(requirements, max_size=3))
def test_a_selector_is_the_conjunction_of_its_requirements(
    labels: dict[str, str], found: list[Requirement]
) -> None:
    expected = all(parse_labels(str(item)).matches(labels) for item in found)
    assert Selector(tuple(found)).matches(labels) is expected


@given(st.text(alphabet="ab=!(),<> in\tö/", max_size=15))
def test_any_text_is_read_or_refused_with_a_position(text: str) -> None:
    try:
        selector = parse_labels(text)
    except BadRequest as error:
        told = "at position" in error.message
    else:
        told = parse_labels(str(selector)) == selector
    assert told
