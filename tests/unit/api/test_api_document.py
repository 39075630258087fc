"""Documents and their bytes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from bullpen.api.document import decode, encode, micro_timestamp, timestamp
from bullpen.errors import BadRequest
from bullpen.kit import times


def test_a_document_survives_its_bytes() -> None:
    document = {"a": [1, 1.5, None, True, "ä"], "b": {}}
    assert decode(encode(document)) == document


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"null", id="null"),
        pytest.param(b"{", id="half an object"),
        pytest.param(b'{"a": "\xff"}', id="bytes that are no text"),
        pytest.param(b'{"a": NaN}', id="not a number"),
        pytest.param(b'{"a":' * 100_000, id="very deep"),
    ],
)
def test_what_is_no_document_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest, match="the body"):
        decode(data)


def test_timestamps_are_those_of_the_codec() -> None:
    moment = datetime(2026, 1, 31, 13, 0, 0, 250_000, tzinfo=timezone(timedelta(hours=1)))
    assert timestamp(moment) == times.text(moment) == "2026-01-31T12:00:00Z"
    assert micro_timestamp(moment) == times.micro_text(moment) == "2026-01-31T12:00:00.250000Z"
    assert timestamp(moment.astimezone(UTC)) == "2026-01-31T12:00:00Z"
