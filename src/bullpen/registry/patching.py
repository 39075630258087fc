"""JSON merge patch (RFC 7386) and JSON patch (RFC 6902), over plain documents.

Pure: the target and the patch are not modified. A malformed patch raises ``BadRequest``; a
patch that cannot be applied to this target raises ``Invalid``. The result is not validated
as an object here.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from bullpen.api.paths import cut, shown
from bullpen.errors import BadRequest, Invalid, TooLarge
from bullpen.registry.options import OBJECT_BYTES_MAX
from bullpen.registry.walking import same

OPERATIONS_MAX = 10_000
"""Operations one JSON patch may have, as in Kubernetes."""

COPIED_BYTES_MAX = OBJECT_BYTES_MAX
"""Bytes that all copy operations of a patch may add; each could double the document."""

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)


def merge_patch(target: Any, patch: Any) -> Any:
    """``target`` with ``patch`` merged in; a null removes its field."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def json_patch(target: Any, patch: Any) -> Any:
    """``target`` with every operation of ``patch`` applied in order, or none."""
    if not isinstance(patch, list):
        raise BadRequest("a JSON patch is a list of operations")
    if len(patch) > OPERATIONS_MAX:
        raise TooLarge(
            f"Request entity too large: The allowed maximum operations in a JSON patch is"
            f" {OPERATIONS_MAX}, got {len(patch)}"
        )
    editing = _Editing(target)
    for number, operation in enumerate(patch):
        editing.do(_operation(operation, number))
    return editing.root


def _operation(operation: object, number: int) -> dict[str, Any]:
    if not isinstance(operation, dict):
        raise BadRequest(f"operation {number} of the JSON patch is not an object")
    name = operation.get("op")
    if not isinstance(name, str) or name not in _NEEDS:
        raise BadRequest(f"operation {number} of the JSON patch has an unknown op {shown(name)}")
    for field in ("path", *_NEEDS[name]):
        if field not in operation:
            raise BadRequest(f"operation {number} of the JSON patch ({name}) has no {field!r}")
    return operation


_NEEDS: dict[str, tuple[str, ...]] = {
    "add": ("value",),
    "remove": (),
    "replace": ("value",),
    "move": ("from",),
    "copy": ("from",),
    "test": ("value",),
}


class _Editing:
    """A private copy of the target while a patch is applied to it."""

    def __init__(self, target: Any) -> None:
        self.root = _copy(target)
        self._copied = 0

    def do(self, operation: dict[str, Any]) -> None:
        path = _pointer(operation["path"])
        match operation["op"]:
            case "add":
                self._add(path, _copy(operation["value"]))
            case "remove":
                self._remove(path)
            case "replace":
                self._replace(path, _copy(operation["value"]))
            case "move":
                self._move(_pointer(operation["from"]), path)
            case "copy":
                self._add(path, self._duplicate(_pointer(operation["from"])))
            case _:
                if not same(self._get(path), operation["value"]):
                    raise Invalid(f"testing value {_text(path)} failed: test failed")

    def _get(self, path: list[str]) -> Any:
        value = self.root
        for depth, token in enumerate(path):
            value = _member(value, token, path[: depth + 1])
        return value

    def _add(self, path: list[str], value: Any) -> None:
        if not path:
            self.root = value
            return
        parent = self._get(path[:-1])
        if isinstance(parent, dict):
            parent[path[-1]] = value
        elif isinstance(parent, list):
            at = len(parent) if path[-1] == "-" else _index(path, length=len(parent) + 1)
            parent.insert(at, value)
        else:
            raise _missing(path)

    def _remove(self, path: list[str]) -> Any:
        removed = self._get(path)
        if not path:
            self.root = None
            return removed
        parent = self._get(path[:-1])
        del parent[path[-1] if isinstance(parent, dict) else int(path[-1])]
        return removed

    def _replace(self, path: list[str], value: Any) -> None:
        self._get(path)
        if not path:
            self.root = value
            return
        parent = self._get(path[:-1])
        parent[path[-1] if isinstance(parent, dict) else int(path[-1])] = value

    def _move(self, source: list[str], path: list[str]) -> None:
        if len(path) > len(source) and path[: len(source)] == source:
            raise Invalid(f"cannot move {_text(source)} into itself")
        self._add(path, self._remove(source))

    def _duplicate(self, source: list[str]) -> Any:
        data = msgspec.json.encode(self._get(source))
        self._copied += len(data)
        if self._copied > COPIED_BYTES_MAX:
            raise TooLarge(f"Request entity too large: copying more than {COPIED_BYTES_MAX} bytes")
        return msgspec.json.decode(data)


def _pointer(text: object) -> list[str]:
    """The tokens of a JSON pointer (RFC 6901)."""
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise BadRequest(f"{shown(text)} is not a JSON pointer: it must be empty or begin with '/'")
    return [token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:]]


def _member(value: Any, token: str, path: list[str]) -> Any:
    if isinstance(value, dict) and token in value:
        return value[token]
    if isinstance(value, list):
        return value[_index(path, length=len(value))]
    raise _missing(path)


def _index(path: list[str], *, length: int) -> int:
    if not _INDEX.fullmatch(path[-1]) or int(path[-1]) >= length:
        raise _missing(path)
    return int(path[-1])


def _missing(path: list[str]) -> Invalid:
    return Invalid(f"the JSON patch names {_text(path)}, which this object does not have")


def _text(path: list[str]) -> str:
    return cut("".join("/" + token.replace("~", "~0").replace("/", "~1") for token in path))


def _copy(value: Any) -> Any:
    return (
        msgspec.json.decode(msgspec.json.encode(value)) if isinstance(value, dict | list) else value
    )
