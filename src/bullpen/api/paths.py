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
    """Path and value of everything at ``pattern``, where ``*`` stands for each list item.

    What is absent, null or of another shape is passed over.
    """
    for steps, value in _walk(document, pattern, ()):
        yield written(steps), value


def _walk(
    value: Any, pattern: tuple[str, ...], steps: tuple[Step, ...]
) -> Iterator[tuple[tuple[Step, ...], Any]]:
    if value is None:
        return
    if not pattern:
        yield steps, value
    elif pattern[0] == "*":
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from _walk(item, pattern[1:], (*steps, index))
    elif isinstance(value, dict):
        yield from _walk(value.get(pattern[0]), pattern[1:], (*steps, pattern[0]))
