"""Durations read and print as Go's do."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.kit import durations

H, M, S, MS, US = (
    timedelta(hours=1),
    timedelta(minutes=1),
    timedelta(seconds=1),
    timedelta(milliseconds=1),
    timedelta(microseconds=1),
)


@pytest.mark.parametrize(
    ("text", "expected", "printed"),
    [
        pytest.param("0", 0 * S, "0s", id="a bare zero needs no unit"),
        pytest.param("-0", 0 * S, "0s", id="zero has no sign"),
        pytest.param("5m", 5 * M, "5m0s", id="minutes print their seconds"),
        pytest.param("1h30m", 90 * M, "1h30m0s", id="units add up"),
        pytest.param("1.5h", 90 * M, "1h30m0s", id="a fraction of an hour"),
        pytest.param("300ms", 300 * MS, "300ms", id="milliseconds stay milliseconds"),
        pytest.param("1500ms", 1500 * MS, "1.5s", id="a second and a half"),
        pytest.param("1.5ms", 1500 * US, "1.5ms", id="a fraction of a millisecond"),
        pytest.param("7us", 7 * US, "7µs", id="ascii micro"),
        pytest.param("7µs", 7 * US, "7µs", id="the micro sign"),
        pytest.param("7μs", 7 * US, "7µs", id="the Greek letter"),
        pytest.param("1999ns", 1 * US, "1µs", id="finer than a microsecond is cut off"),
        pytest.param("-1s", -1 * S, "-1s", id="negative"),
        pytest.param("-1.5h", -90 * M, "-1h30m0s", id="a negative prints one sign"),
        pytest.param("-1999ns", -1 * US, "-1µs", id="cutting off goes towards zero"),
        pytest.param("+2s", 2 * S, "2s", id="a plus is allowed"),
        pytest.param(".5s", 500 * MS, "500ms", id="no digit before the point"),
        pytest.param("1.s", 1 * S, "1s", id="no digit after the point"),
        pytest.param("1s1s", 2 * S, "2s", id="a unit may repeat"),
        pytest.param("100h", 100 * H, "100h0m0s", id="there is nothing above hours"),
        pytest.param("1h0m0.000001s", H + US, "1h0m0.000001s", id="one microsecond counts"),
        pytest.param("0h0m1.25s", 1250 * MS, "1.25s", id="zeros in front vanish"),
        pytest.param(
            "9223372036854775807ns",
            9223372036854775 * US,
            "2562047h47m16.854775s",
            id="the longest Go can hold",
        ),
        pytest.param(
            "-9223372036854775808ns",
            -9223372036854775 * US,
            "-2562047h47m16.854775s",
            id="the shortest Go can hold",
        ),
    ],
)
def test_a_duration_reads_and_prints(text: str, expected: timedelta, printed: str) -> None:
    assert durations.parse(text) == expected
    assert durations.text(expected) == printed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "+",
        ".",
        ".s",
        "s",
        "1",
        "1h1",
        "1x",
        "1 h",
        " 1h",
        "1h ",
        "--1s",
        "٣s",
        "1e3s",
        "1d",
    ],
)
def test_what_is_no_duration_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(ValueError, match="such as 300ms"):
        durations.parse(text)


@pytest.mark.parametrize(
    "text", ["9223372036854775808ns", "-9223372036854775809ns", "2562048h", "99999999999999999999h"]
)
def test_what_go_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="292 years"):
        durations.parse(text)


def test_a_text_longer_than_any_honest_one_is_refused_without_being_repeated() -> None:
    with pytest.raises(ValueError, match="more than 100 characters") as caught:
        durations.parse("0" * 1_000_000 + "1s")
    assert len(str(caught.value)) < 200


@given(st.timedeltas(min_value=timedelta(days=-100_000), max_value=timedelta(days=100_000)))
def test_every_duration_survives_being_printed(duration: timedelta) -> None:
    assert durations.parse(durations.text(duration)) == duration


@given(st.text(alphabet="0123456789.hmsnuµ+-", max_size=12))
def test_reading_either_succeeds_or_says_why(text: str) -> None:
    try:
        found = durations.parse(text)
    except ValueError as error:
        told = str(error).startswith("duration ")
    else:
        told = durations.parse(durations.text(found)) == found
    assert told
