"""What clients ask for: times that fit together, selectors and tags that make sense."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api.kinds.lease import TAGS_MAX
from bullpen.errors import BadRequest
from bullpen.kit.clock import EPOCH
from bullpen.kit.selectors import parse_labels
from bullpen.services.lease_requests import (
    AWAY_MAX,
    DURATION_MAX,
    label_selector,
    tag_labels,
    times,
)

NOW = EPOCH
HOUR = timedelta(hours=1)
Moment = datetime | None
Span = timedelta | None


@pytest.mark.parametrize(
    ("begin", "end", "duration", "expected"),
    [
        pytest.param(None, None, HOUR, (None, None, HOUR), id="now, for an hour"),
        pytest.param(NOW, None, HOUR, (NOW, None, HOUR), id="from then, for an hour"),
        pytest.param(NOW, NOW + HOUR, None, (NOW, NOW + HOUR, HOUR), id="from then to then"),
        pytest.param(None, NOW + 2 * HOUR, HOUR, (NOW + HOUR, NOW + 2 * HOUR, HOUR), id="until"),
        pytest.param(NOW, NOW + HOUR, HOUR, (NOW, NOW + HOUR, HOUR), id="all three"),
        pytest.param(NOW - HOUR, None, 2 * HOUR, (NOW - HOUR, None, 2 * HOUR), id="already begun"),
        pytest.param(None, None, DURATION_MAX, (None, None, DURATION_MAX), id="the longest"),
    ],
)
def test_times_that_fit(
    begin: Moment, end: Moment, duration: Span, expected: tuple[Moment, Moment, Span]
) -> None:
    assert times(begin, end, duration, now=NOW) == expected


@pytest.mark.parametrize(
    ("begin", "end", "duration", "text"),
    [
        pytest.param(None, None, None, "above zero", id="nothing"),
        pytest.param(None, None, timedelta(0), "above zero", id="zero"),
        pytest.param(None, None, -HOUR, "above zero", id="negative"),
        pytest.param(NOW + HOUR, NOW, None, "above zero", id="an end before the beginning"),
        pytest.param(NOW, NOW + HOUR, 2 * HOUR, "contradict", id="three that do not fit"),
        pytest.param(None, None, DURATION_MAX + HOUR, "at most 3650 days", id="a century"),
        pytest.param(None, None, timedelta.max, "at most 3650 days", id="for ever"),
        pytest.param(NOW - 2 * HOUR, None, HOUR, "is in the past", id="over already"),
        pytest.param(
            NOW - 2 * HOUR, NOW - HOUR, None, "is in the past", id="between two moments gone"
        ),
        pytest.param(NOW + AWAY_MAX + HOUR, None, HOUR, "3650 days from now", id="far ahead"),
        pytest.param(
            datetime.max.replace(tzinfo=NOW.tzinfo), None, HOUR, "days from now", id="the last day"
        ),
        pytest.param(
            None, datetime.min.replace(tzinfo=NOW.tzinfo), HOUR, "days from now", id="the first day"
        ),
    ],
)
def test_times_that_do_not(begin: Moment, end: Moment, duration: Span, text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        times(begin, end, duration, now=NOW)


moments = st.none() | st.datetimes(timezones=st.just(NOW.tzinfo))


@given(moments, moments, st.none() | st.timedeltas())
def test_any_times_are_made_consistent_or_refused(
    begin: Moment, end: Moment, duration: Span
) -> None:
    try:
        found_begin, found_end, found = times(begin, end, duration, now=NOW)
    except BadRequest:
        return
    assert timedelta(0) < found <= DURATION_MAX
    if found_end is not None:
        assert found_begin is not None
        assert found_begin + found == found_end > NOW


def test_a_selector_becomes_labels_and_expressions() -> None:
    found = label_selector(parse_labels("a=b,c in (x,y),d notin (z),e,!f,g!=h"))
    assert found.match_labels == {"a": "b"}
    assert [(e.key, e.operator, e.values) for e in found.match_expressions] == [
        ("c", "In", ("x", "y")),
        ("d", "NotIn", ("z",)),
        ("e", "Exists", ()),
        ("f", "DoesNotExist", ()),
        ("g", "NotIn", ("h",)),
    ]


@pytest.mark.parametrize(
    ("text", "refusal"), [("a=b,a=c", "two values of 'a'"), ("a>1", "not supported")]
)
def test_a_selector_that_no_lease_can_have_is_refused(text: str, refusal: str) -> None:
    with pytest.raises(BadRequest, match=refusal):
        label_selector(parse_labels(text))


selectors = st.lists(
    st.sampled_from(("a=b", "c in (x,y)", "d notin (z)", "e", "!f", "g!=h")), unique=True
).map(",".join)


@given(selectors, st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from("bxyzh")))
def test_what_was_asked_for_and_what_is_stored_match_the_same_exporters(
    text: str, labels: dict[str, str]
) -> None:
    asked = parse_labels(text)
    stored = label_selector(asked).selector()
    assert stored.matches(labels) == asked.matches(labels)


def test_tags_become_labels_of_their_own() -> None:
    assert tag_labels({"run": "7"}) == {"metadata.jumpstarter.dev/run": "7"}


@pytest.mark.parametrize(
    ("tags", "refusal"),
    [
        pytest.param({"a/b": "c"}, "must not contain '/'", id="a prefix"),
        pytest.param({"jumpstarter.dev": "c"}, "reserved prefix", id="a reserved word"),
        pytest.param({"": "c"}, "tag ''", id="no name"),
        pytest.param({"a b": "c"}, "tag 'a b'", id="a space"),
        pytest.param({"a": "b c"}, "the value 'b c'", id="a value with a space"),
        pytest.param({"a": "x" * 64}, "the value", id="a value too long"),
        pytest.param({"idle-timeout": "soon"}, "the value 'soon'", id="no duration"),
        pytest.param({"idle-timeout": "9s"}, "at least 10s", id="too short a time-out"),
        pytest.param({str(n): "x" for n in range(TAGS_MAX + 1)}, "at most 10 tags", id="too many"),
    ],
)
def test_bad_tags_are_refused(tags: dict[str, str], refusal: str) -> None:
    with pytest.raises(BadRequest, match=refusal):
        tag_labels(tags)
