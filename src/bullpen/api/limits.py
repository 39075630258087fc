"""Limits of a document, and what JSON cannot represent at all.

``oddity`` is called before any other code looks at a document from outside, so later code
may recurse into it and encode it.
"""

from __future__ import annotations

import math
from typing import Any

from bullpen.api.paths import Step, written
from bullpen.errors import Cause

DEPTH_MAX = 100
"""Levels of nesting in a document."""

CAUSES_MAX = 100
"""Problems reported about one document."""

INTEGER_MAX = 2**63 - 1
"""Kubernetes' integers are 64 bits wide."""


def oddity(document: Any) -> Cause | None:
    """The first value in ``document`` that is not allowed in an object of any kind."""
    try:
        _inspect(document, DEPTH_MAX)
    except _Odd as odd:
        odd.steps.reverse()
        return Cause(field=written(tuple(odd.steps)), message=f"Invalid value: {odd.message}")
    return None


class _Odd(Exception):
    """Carries the path outwards, innermost step first."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.steps: list[Step] = []


def _inspect(value: Any, levels: int) -> None:
    if type(value) is str:
        _inspect_text(value)
    elif type(value) is dict:
        _inspect_map(value, levels)
    elif type(value) is list:
        _inspect_list(value, levels)
    elif type(value) is int:
        if not -INTEGER_MAX - 1 <= value <= INTEGER_MAX:
            raise _Odd("an integer must fit into 64 bits")
    elif type(value) is float:
        if not math.isfinite(value):
            raise _Odd("a number must be finite")
    elif value is not None and type(value) is not bool:
        raise _Odd(f"{type(value).__name__} is not JSON")


def _inspect_map(value: dict[Any, Any], levels: int) -> None:
    if not levels:
        raise _Odd(_TOO_DEEP)
    for key, child in value.items():
        try:
            if type(key) is not str:
                raise _Odd("keys must be strings")
            _inspect_text(key)
            _inspect(child, levels - 1)
        except _Odd as odd:
            odd.steps.append(str(key).encode(errors="replace").decode())
            raise


def _inspect_list(value: list[Any], levels: int) -> None:
    if not levels:
        raise _Odd(_TOO_DEEP)
    for index, child in enumerate(value):
        try:
            _inspect(child, levels - 1)
        except _Odd as odd:
            odd.steps.append(index)
            raise


_TOO_DEEP = f"must not be nested deeper than {DEPTH_MAX} levels"


def _inspect_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _Odd("text must be valid Unicode") from None
