"""Documents: Kubernetes objects as JSON, and paths into them.

A Kubernetes object as JSON: the form that is stored, sent and patched. Documents are plain
dicts so that unknown fields survive. Decisions work on the frozen values of the kind
modules instead.

Finds values in documents by path, and formats paths and values for messages. The output is
short, however long the input: untrusted callers choose the keys and values that error
messages repeat.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
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


Step = str | int

SHOWN_MAX = 120
"""Characters of a key or a value that an error message repeats."""


def written(steps: tuple[Step, ...]) -> str:
    """``("spec", "policies", 0, "from")`` → ``spec.policies[0].from``."""
    parts = (f"[{step}]" if isinstance(step, int) else f".{cut(step)}" for step in steps)
    return "".join(parts).removeprefix(".")


def shown(value: Any) -> str:
    """``value`` as JSON, truncated."""
    if isinstance(value, str):
        return json.dumps(cut(value), ensure_ascii=False)
    return cut(json.dumps(value, ensure_ascii=False))


def cut(text: str) -> str:
    """``text``, truncated to a recognisable length."""
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def walk(document: Any, pattern: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """As ``find``, with each path as text."""
    for steps, value in find(document, pattern):
        yield written(steps), value


def find(
    value: Any, pattern: tuple[str, ...], steps: tuple[Step, ...] = ()
) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """Path and value of everything at ``pattern``, where ``*`` stands for each list item.

    Values that are absent, null or of another type are skipped.
    """
    if value is None:
        return
    if not pattern:
        yield steps, value
    elif pattern[0] == "*":
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from find(item, pattern[1:], (*steps, index))
    elif isinstance(value, dict):
        yield from find(value.get(pattern[0]), pattern[1:], (*steps, pattern[0]))
