"""Patches: JSON patch, JSON merge patch and strategic merge patch.

JSON merge patch (RFC 7386) and JSON patch (RFC 6902), over plain documents. Pure: the
target and the patch are not modified. A malformed patch raises ``BadRequest``; a patch that
cannot be applied to this target raises ``Invalid``. The result is not validated as an
object here.

Strategic merge patch: what kubectl sends for built-in kinds. Like a merge patch, but lists
that the schema declares as mergeable merge by key, and directives in the patch delete,
replace or retain. As in Kubernetes, custom resources do not support it; the registry checks
that. Pure.

Computes the result of a patch. This covers all types except apply, which also depends on
the caller; for apply only the options are checked here. Pure.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from bullpen.api.paths import Document, cut, shown
from bullpen.api.resource import Resource
from bullpen.errors import BadRequest, Cause, Invalid, TooLarge, UnsupportedMediaType
from bullpen.registry.fields import Schema, field_schema, item_schema
from bullpen.registry.managed_fields import same
from bullpen.registry.messages import invalid_kind
from bullpen.registry.options import OBJECT_BYTES_MAX, PatchType, WriteOptions
from bullpen.registry.preparation import check_walkable

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


DIRECTIVE = "$patch"
RETAIN_KEYS = "$retainKeys"
DELETE_FROM_LIST = "$deleteFromPrimitiveList/"
ELEMENT_ORDER = "$setElementOrder/"
"""Sent by kubectl. Order has no meaning in our kinds, so it is ignored."""


def strategic_patch(schema: Schema, target: dict[str, Any], patch: Any) -> dict[str, Any]:
    """``target`` with ``patch`` merged by the rules of ``schema``; raises ``BadRequest``."""
    if not isinstance(patch, dict):
        raise BadRequest("a strategic merge patch is an object")
    directive = patch.get(DIRECTIVE)
    if directive is not None:
        return _directed(directive, patch)
    result = _retained(target, patch)
    for key, value in patch.items():
        if key == RETAIN_KEYS or key.startswith(ELEMENT_ORDER):
            continue
        if key.startswith(DELETE_FROM_LIST):
            _delete_from_list(result, key.removeprefix(DELETE_FROM_LIST), value)
        elif value is None or (_is_directive(value) and not isinstance(result.get(key), dict)):
            result.pop(key, None)
        else:
            result[key] = _merged(field_schema(schema, key), result.get(key), value)
    return result


def _directed(directive: object, patch: dict[str, Any]) -> dict[str, Any]:
    if directive == "replace":
        return {key: _plain(value) for key, value in patch.items() if key != DIRECTIVE}
    if directive == "delete":
        return {}
    raise BadRequest(f"unknown $patch directive {directive!r}: use replace or delete")


def _retained(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    keep = patch.get(RETAIN_KEYS)
    if keep is None:
        return dict(target)
    if not isinstance(keep, list):
        raise BadRequest("$retainKeys must be a list of field names")
    stated = [key for key, value in patch.items() if value is not None and key[0:1] != "$"]
    if any(key not in keep for key in stated):
        raise BadRequest("$retainKeys must name every field the patch sets")
    return {key: value for key, value in target.items() if key in keep}


def _delete_from_list(result: dict[str, Any], key: str, values: object) -> None:
    if not isinstance(values, list):
        raise BadRequest(f"{DELETE_FROM_LIST}{key} must be a list of values")
    current = result.get(key)
    if isinstance(current, list):
        result[key] = [item for item in current if not any(same(item, gone) for gone in values)]


def _merged(schema: Schema, current: Any, value: Any) -> Any:
    if isinstance(value, dict) and isinstance(current, dict):
        if "replace" in _strategy(schema):
            return _plain(value)
        return strategic_patch(schema, current, value)
    if isinstance(value, list) and isinstance(current, list) and _merges(schema):
        return _merged_list(schema, current, value)
    return _plain(value)


def _merged_list(schema: Schema, current: list[Any], patch: list[Any]) -> list[Any]:
    key = _merge_key(schema)
    if not key:
        return [*current, *(v for v in patch if not any(same(v, item) for item in current))]
    result = list(current)
    if any(isinstance(item, dict) and item.get(DIRECTIVE) == "replace" for item in patch):
        result = []
        patch = [item for item in patch if item.get(DIRECTIVE) != "replace"]
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise BadRequest(f"an item of a list merged by {key!r} does not have it")
        _merge_item(schema, result, item, key)
    return result


def _merge_item(schema: Schema, result: list[Any], item: dict[str, Any], key: str) -> None:
    at = next((i for i, old in enumerate(result) if _has_key(old, key, item[key])), None)
    if item.get(DIRECTIVE) == "delete":
        result[:] = [old for old in result if not _has_key(old, key, item[key])]
    elif at is None:
        result.append(_plain(item))
    else:
        result[at] = strategic_patch(item_schema(schema), result[at], item)


def _has_key(item: object, key: str, value: object) -> bool:
    return isinstance(item, dict) and same(item.get(key), value)


def _plain(value: Any) -> Any:
    """A patch's value where there is nothing to merge with: no directives, no nulls."""
    if isinstance(value, list):
        return [_plain(item) for item in value if not _is_directive(item)]
    if not isinstance(value, dict):
        return value
    return {
        key: _plain(item)
        for key, item in value.items()
        if item is not None and key[0:1] != "$" and not _is_directive(item)
    }


def _is_directive(value: object) -> bool:
    return isinstance(value, dict) and DIRECTIVE in value


def _merges(schema: Schema) -> bool:
    return "merge" in _strategy(schema) or schema.get("x-kubernetes-list-type") in ("map", "set")


def _strategy(schema: Schema) -> list[str]:
    return str(schema.get("x-kubernetes-patch-strategy", "")).split(",")


def _merge_key(schema: Schema) -> str:
    """The field by which items are matched; empty for a list of plain values."""
    keys = schema.get("x-kubernetes-list-map-keys") or [""]
    return str(schema.get("x-kubernetes-patch-merge-key") or keys[0])


def patched(resource: Resource, current: Document, kind: PatchType, patch: Any) -> Document:
    """``current`` with ``patch`` applied; the result is not validated."""
    check_walkable(patch)
    match kind:
        case PatchType.JSON:
            result = json_patch(current, patch)
        case PatchType.MERGE:
            result = merge_patch(current, patch)
        case PatchType.STRATEGIC:
            result = _strategic(resource, current, patch)
        case PatchType.APPLY:
            raise AssertionError("an apply is not a patch of the current state")
    if not isinstance(result, dict):
        raise BadRequest("the patch would leave something else than an object")
    return result


def check_options(kind: PatchType, options: WriteOptions) -> None:
    """Reject options that do not apply to the type of patch."""
    if kind is PatchType.APPLY and not options.field_manager:
        message = "Required value: is required for apply patch"
        raise _invalid(Cause("fieldManager", message, "FieldValueRequired"))
    if kind is not PatchType.APPLY and options.force:
        message = "Forbidden: may not be specified for non-apply patch"
        raise _invalid(Cause("force", message, "FieldValueForbidden"))


def _invalid(cause: Cause) -> Exception:
    return invalid_kind("PatchOptions.meta.k8s.io", "", (cause,))


def _strategic(resource: Resource, current: Document, patch: Any) -> Document:
    if resource.custom:
        raise UnsupportedMediaType(
            "the body of the request was in an unknown format - accepted media types include:"
            f" {PatchType.JSON}, {PatchType.MERGE}, {PatchType.APPLY}"
        )
    return strategic_patch(resource.schema, current, patch)
