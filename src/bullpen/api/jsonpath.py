"""The part of JSONPath that printer columns use, compiled.

``.a.b``, ``.a['b.c']``, ``[0]``, ``[*]`` and ``[?(@.type=="Online")]``. Paths come from our
own table, so an invalid path is a bug and raises at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

_Step = Callable[[Any], Iterator[Any]]

_STEP = re.compile(
    r"""\.(?P<key>[A-Za-z0-9_-]+)
    | \[(?P<quote>['"])(?P<quoted>.+?)(?P=quote)\]
    | \[(?P<index>[0-9]+)\]
    | (?P<every>\[\*\])
    | \[\?\(@\.(?P<field>[A-Za-z0-9_-]+)\s*==\s*["'](?P<wanted>[^"']*)["']\)\]
    """,
    re.VERBOSE,
)


@lru_cache(maxsize=256)
def compile_path(path: str) -> Callable[[Any], Any]:
    """A function from a document to the first value at ``path``, or None."""
    steps = tuple(_steps(path))

    def first(document: Any) -> Any:
        return next(_follow(document, steps), None)

    return first


def _steps(path: str) -> Iterator[_Step]:
    position = 0
    while position < len(path):
        found = _STEP.match(path, position)
        if found is None:
            raise ValueError(f"cannot read JSONPath {path!r} at position {position}")
        yield _step(found)
        position = found.end()


def _step(found: re.Match[str]) -> _Step:
    key = found["key"] or found["quoted"]
    if key:
        return lambda value: iter((value[key],) if isinstance(value, dict) and key in value else ())
    if found["every"]:
        return lambda value: iter(value if isinstance(value, list) else ())
    if found["index"]:
        index = int(found["index"])
        return lambda value: iter(value[index : index + 1] if isinstance(value, list) else ())
    return _filter(found["field"], found["wanted"])


def _filter(field: str, wanted: str) -> _Step:
    def select(value: Any) -> Iterator[Any]:
        items = value if isinstance(value, list) else ()
        return (item for item in items if isinstance(item, dict) and item.get(field) == wanted)

    return select


def _follow(value: Any, steps: tuple[_Step, ...]) -> Iterator[Any]:
    if steps:
        for item in steps[0](value):
            yield from _follow(item, steps[1:])
    else:
        yield value
