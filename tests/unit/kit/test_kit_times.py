"""Times are RFC 3339 and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.kit import times

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("2026-01-31T12:00:00Z", NOON, id="whole seconds in UTC"),
        pytest.param("2026-01-31T13:30:00+01:30", NOON, id="another zone is read into UTC"),
        pytest.param(
            "2026-01-31T12:00:00.25Z", NOON + timedelta(milliseconds=250), id="a fraction"
        ),
        pytest.param(
            "2026-01-31T12:00:00.123456789Z",
            NOON + timedelta(microseconds=123456),
            id="nanoseconds are cut off",
        ),
    ],
)
def test_a_time_is_read(text: str, expected: datetime) -> None:
    found = times.parse(text)
    assert found == expected
    assert found.tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("2026-01-31", id="a date"),
        pytest.param("2026-01-31T12:00:00", id="no zone"),
        pytest.param("2026-01-31 12:00:00Z", id="a space instead of T"),
        pytest.param("2026-01-31t12:00:00z", id="small letters"),
        pytest.param("2026-W05-6T12:00:00Z", id="a week date of the usual length"),
        pytest.param("20260131T120000Z", id="the basic format"),
        pytest.param("2026-01-31T120000.0Z", id="a basic time of the usual length"),
        pytest.param("2026-02-30T12:00:00Z", id="a day that does not exist"),
        pytest.param("2026-01-31T12:00:60Z", id="a leap second"),
        pytest.param("0000-01-31T12:00:00Z", id="the year nought"),
        pytest.param("0001-01-01T00:00:00+10:00", id="before the year one"),
        pytest.param("9999-12-31T23:00:00-10:00", id="after the year 9999"),
        pytest.param("2026-01-31T12:00:00+25:00", id="a zone that does not exist"),
        pytest.param("2026-01-31T12:00:00.1234567890Z", id="ten digits of a second"),
        pytest.param("２026-01-31T12:00:00Z", id="digits of another script"),
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        times.parse(text)


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5))])))
def test_every_time_survives_being_printed_with_microseconds(moment: datetime) -> None:
    try:
        utc = moment.astimezone(UTC)
    except OverflowError:
        return
    assert times.parse(times.micro_text(moment)) == utc
    assert times.parse(times.text(moment)) == utc.replace(microsecond=0)
    assert len(times.text(moment)) == 20
    assert len(times.micro_text(moment)) == 27


@given(st.text(alphabet="0123456789-:TZ+.W", min_size=18, max_size=22))
def test_reading_either_succeeds_or_refuses(text: str) -> None:
    try:
        times.parse(text)
    except ValueError:
        return
    assert text[10] == "T"


@given(
    st.datetimes(timezones=st.just(UTC)),
    st.timedeltas(min_value=-timedelta(days=365 * 9999), max_value=timedelta(days=365 * 9999)),
)
def test_adding_to_a_time_never_fails(moment: datetime, by: timedelta) -> None:
    found = times.shifted(moment, by)
    try:
        assert found == moment + by
    except OverflowError:
        assert found == (times.LATEST if by > timedelta(0) else times.EARLIEST)


def test_a_sum_beyond_the_last_year_is_the_last_moment() -> None:
    last = times.parse("9999-12-31T23:59:59Z")
    assert times.shifted(last, timedelta(hours=1)) == times.LATEST
    assert times.shifted(times.parse("0001-01-02T00:00:00Z"), -timedelta(days=9)) == times.EARLIEST
