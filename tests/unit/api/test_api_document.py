"""Documents and their bytes."""

from __future__ import annotations

import pytest

from bullpen.api.paths import decode, encode
from bullpen.errors import BadRequest


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
