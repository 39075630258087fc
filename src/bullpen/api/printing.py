"""Objects as rows of a table, the way ``kubectl get`` shows them.

The part of JSONPath that printer columns use, compiled. ``.a.b``, ``.a['b.c']``, ``[0]``,
``[*]`` and ``[?(@.type=="Online")]``. Paths come from our own table, so an invalid path is
a bug and raises at once.

Objects as rows of a table, the way ``kubectl get`` shows them. Custom kinds print their
declared columns and leave a cell empty if there is no value; Kubernetes' own kinds print
the columns that kubectl's users know. ``now`` is an argument: a row is a pure function of
the object and the time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import cache, lru_cache
from typing import Any

from bullpen.api.columns import AGE, Column
from bullpen.api.paths import Document
from bullpen.api.resource import Resource
from bullpen.kit import times

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


_NAME = Column(
    name="Name",
    path=".metadata.name",
    format="name",
    description="Name, unique among objects of this kind in the namespace.",
)

Cell = Callable[[Document, datetime], Any]


def table_columns(resource: Resource) -> list[Document]:
    """The columns of ``resource``'s tables, as Kubernetes' Table type has them."""
    return [_definition(column) for column, _ in _layout(resource)]


def cells(resource: Resource, document: Document, now: datetime) -> list[Any]:
    """One row: a value for each of ``table_columns``."""
    return [cell(document, now) for _, cell in _layout(resource)]


def human_duration(age: timedelta) -> str:
    """``5s``, ``3m20s``, ``2d3h``: two units while they matter, then one."""
    seconds = int(age.total_seconds())
    if seconds < 0:
        # The clocks of two machines differ slightly.
        return "0s" if seconds > -2 else "<invalid>"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 2 * 365:
        return f"{days}d"
    if days < 8 * 365:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"


def _definition(column: Column) -> Document:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    }


@cache
def _layout(resource: Resource) -> tuple[tuple[Column, Cell], ...]:
    built_in = _BUILT_IN.get((resource.group, resource.kind))
    if built_in is not None:
        return built_in
    age = () if any(column.path == AGE.path for column in resource.columns) else (AGE,)
    columns = (_NAME, *resource.columns, *age)
    return tuple((column, _column_cell(column)) for column in columns)


def _column_cell(column: Column) -> Cell:
    find = compile_path(column.path)
    convert = _CONVERSIONS[column.type]
    return lambda document, now: convert(find(document), now)


def _as_text(value: Any, now: datetime) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _as_integer(value: Any, now: datetime) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _as_number(value: Any, now: datetime) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _as_boolean(value: Any, now: datetime) -> bool | None:
    return value if isinstance(value, bool) else None


def _as_age(value: Any, now: datetime) -> str | None:
    if value is None:
        return None
    try:
        return human_duration(now - times.parse(value))
    except (TypeError, ValueError):
        return "<invalid>"


_CONVERSIONS: Mapping[str, Callable[[Any, datetime], Any]] = {
    "string": _as_text,
    "integer": _as_integer,
    "number": _as_number,
    "boolean": _as_boolean,
    "date": _as_age,
}


def _age(document: Document, now: datetime) -> str:
    return _as_age(_at(document, "metadata", "creationTimestamp"), now) or "<unknown>"


def _at(document: Any, *keys: str) -> Any:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _text(*keys: str) -> Cell:
    return lambda document, now: _as_text(_at(document, *keys), now) or ""


def _count(*names: str) -> Cell:
    return lambda document, now: sum(len(_at(document, name) or ()) for name in names)


def _first_seen(document: Document, now: datetime) -> str:
    seen = _at(document, "firstTimestamp") or _at(document, "eventTime")
    return _as_age(seen, now) or "<unknown>"


def _last_seen(document: Document, now: datetime) -> str:
    seen = _at(document, "series", "lastObservedTime") or _at(document, "lastTimestamp")
    return _as_age(seen, now) or _first_seen(document, now)


def _times_seen(document: Document, now: datetime) -> int:
    return _at(document, "series", "count") or _at(document, "count") or 1


def _event_object(document: Document, now: datetime) -> str:
    kind, name = (_at(document, "involvedObject", key) or "" for key in ("kind", "name"))
    return f"{kind.lower()}/{name}" if name else kind.lower()


def _event_source(document: Document, now: datetime) -> str:
    parts = [_at(document, "source", "component"), _at(document, "source", "host")]
    if not any(parts):
        parts = [_at(document, "reportingComponent"), _at(document, "reportingInstance")]
    return ", ".join(part for part in parts if part)


def _event_message(document: Document, now: datetime) -> str:
    return str(_at(document, "message") or "").strip()


def _role(document: Document, now: datetime) -> str:
    return f"{_at(document, 'roleRef', 'kind')}/{_at(document, 'roleRef', 'name')}"


def _subjects(kind: str) -> Cell:
    """The subjects of one kind in a binding, service accounts with their namespace."""

    def cell(document: Document, now: datetime) -> str:
        found = [item for item in _at(document, "subjects") or () if item.get("kind") == kind]
        names = [
            f"{item.get('namespace', '')}/{item.get('name', '')}"
            if kind == "ServiceAccount"
            else str(item.get("name", ""))
            for item in found
        ]
        return ", ".join(names)

    return cell


def _column(title: str, cell: Cell, *, priority: int = 0) -> tuple[Column, Cell]:
    return Column(name=title, path="", priority=priority), cell


_NAME_COLUMN = (_NAME, _text("metadata", "name"))
_AGE_COLUMN = _column("Age", _age)
_CREATED_COLUMN = _column("Created At", _text("metadata", "creationTimestamp"))
_BINDING_COLUMNS = (
    _NAME_COLUMN,
    _column("Role", _role),
    _AGE_COLUMN,
    _column("Users", _subjects("User"), priority=1),
    _column("Groups", _subjects("Group"), priority=1),
    _column("ServiceAccounts", _subjects("ServiceAccount"), priority=1),
)

_BUILT_IN: Mapping[tuple[str, str], tuple[tuple[Column, Cell], ...]] = {
    ("", "Secret"): (
        _NAME_COLUMN,
        _column("Type", _text("type")),
        _column("Data", _count("data")),
        _AGE_COLUMN,
    ),
    ("", "ConfigMap"): (
        _NAME_COLUMN,
        _column("Data", _count("data", "binaryData")),
        _AGE_COLUMN,
    ),
    ("", "Namespace"): (_NAME_COLUMN, _column("Status", _text("status", "phase")), _AGE_COLUMN),
    ("", "Event"): (
        _column("Last Seen", _last_seen),
        _column("Type", _text("type")),
        _column("Reason", _text("reason")),
        _column("Object", _event_object),
        _column("Subobject", _text("involvedObject", "fieldPath"), priority=1),
        _column("Source", _event_source, priority=1),
        _column("Message", _event_message),
        _column("First Seen", _first_seen, priority=1),
        _column("Count", _times_seen, priority=1),
        _column("Name", _text("metadata", "name"), priority=1),
    ),
    ("", "ServiceAccount"): (_NAME_COLUMN, _column("Secrets", _count("secrets")), _AGE_COLUMN),
    ("rbac.authorization.k8s.io", "Role"): (_NAME_COLUMN, _CREATED_COLUMN),
    ("rbac.authorization.k8s.io", "ClusterRole"): (_NAME_COLUMN, _CREATED_COLUMN),
    ("rbac.authorization.k8s.io", "RoleBinding"): _BINDING_COLUMNS,
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): _BINDING_COLUMNS,
    ("coordination.k8s.io", "Lease"): (
        _NAME_COLUMN,
        _column("Holder", _text("spec", "holderIdentity")),
        _AGE_COLUMN,
    ),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): (
        _NAME_COLUMN,
        _CREATED_COLUMN,
    ),
}
