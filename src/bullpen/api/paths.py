"""Finds values in documents by path, and formats paths and values for messages.

The output is short, however long the input: untrusted callers choose the keys and values
that error messages repeat.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

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
