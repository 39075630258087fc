"""Finding values in documents by path, and writing paths as Kubernetes does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Step = str | int


def written(steps: tuple[Step, ...]) -> str:
    """``("spec", "policies", 0, "from")`` → ``spec.policies[0].from``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(
        "."
    )


def walk(document: Any, pattern: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """As ``find``, with each path as text."""
    for steps, value in find(document, pattern):
        yield written(steps), value


def find(
    value: Any, pattern: tuple[str, ...], steps: tuple[Step, ...] = ()
) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """Path and value of everything at ``pattern``, where ``*`` stands for each list item.

    What is absent, null or of another shape is passed over.
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
