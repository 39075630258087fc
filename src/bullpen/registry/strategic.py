"""Strategic merge patch: what kubectl sends for built-in kinds.

Like a merge patch, but lists that the schema declares as mergeable merge by key, and
directives in the patch delete, replace or retain. As in Kubernetes, custom resources do not
support it; the registry checks that. Pure.
"""

from __future__ import annotations

from typing import Any

from bullpen.errors import BadRequest
from bullpen.registry.structure import Schema, field_schema, item_schema
from bullpen.registry.walking import same

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
