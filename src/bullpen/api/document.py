"""A Kubernetes object as JSON: the form that is stored, sent and patched.

Documents are plain dicts so that unknown fields survive. Decisions work on the frozen
values of the kind modules instead.
"""

from __future__ import annotations

from typing import Any

import msgspec

from bullpen.errors import BadRequest

Document = dict[str, Any]

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def encode(document: object) -> bytes:
    """The canonical bytes of a document."""
    return _encoder.encode(document)


def decode(data: bytes) -> Document:
    """The document in ``data``; raises ``BadRequest`` unless it is a JSON object."""
    try:
        value = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest(f"the body must be a JSON object, not {type(value).__name__}")
    return value
