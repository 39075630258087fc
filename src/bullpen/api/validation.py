"""Validates a document against its schema, with Kubernetes' messages.

jsonschema-rs does the checking and is imported on first use, so that commands that validate
nothing do not wait for it. Fields that are not in the schema are never an error here: they
are stored. ``unknown_fields`` finds them for strict field validation.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bullpen.api.paths import Step, shown, walk, written
from bullpen.errors import Cause
from bullpen.kit import durations, times

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator, ValidationError

_Schema = Mapping[str, Any]

UNKNOWN_FIELDS_MAX = 100


def compile_schema(schema: _Schema) -> Draft202012Validator:
    """A validator for ``schema``, to be kept and reused."""
    from jsonschema_rs import Draft202012Validator

    return Draft202012Validator(
        _as_json_schema(schema),
        validate_formats=True,
        formats=_FORMATS,
        ignore_unknown_formats=True,
    )


def schema_causes(validator: Draft202012Validator, document: Any) -> Iterator[Cause]:
    """The schema violations in ``document``, which must have no oddity."""
    if not validator.is_valid(document):
        for error in validator.iter_errors(document):
            yield _cause(error)


def is_base64(text: str) -> bool:
    """Whether ``text`` is valid base64 for the API."""
    try:
        base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return False
    return True


def _parses(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def valid(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return valid


# The same functions decode the values later, so a valid value can be decoded.
_FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": _parses(times.parse),
    "duration": _parses(durations.parse),
    "byte": is_base64,
}

_INTEGER_BOUNDS = {"int32": 2**31, "int64": 2**63}
_COPIED = (
    "required",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "format",
)


def _as_json_schema(schema: _Schema) -> dict[str, Any]:
    """Convert OpenAPI's dialect to plain JSON Schema."""
    plain: dict[str, Any] = {key: schema[key] for key in _COPIED if key in schema}
    types = [schema["type"]] if "type" in schema else []
    if schema.get("x-kubernetes-int-or-string"):
        types = ["integer", "string"]
    if types:
        plain["type"] = [*types, "null"] if schema.get("nullable") else types
    if schema.get("type") == "integer":
        bound = _INTEGER_BOUNDS[plain.pop("format", "int64")]
        plain["minimum"] = schema.get("minimum", -bound)
        plain["maximum"] = schema.get("maximum", bound - 1)
    if "properties" in schema:
        plain["properties"] = {
            name: _as_json_schema(part) for name, part in schema["properties"].items()
        }
    for part in ("items", "additionalProperties"):
        if part in schema:
            plain[part] = _as_json_schema(schema[part])
    return plain


def _cause(error: ValidationError) -> Cause:
    facts = error.kind.as_dict()
    steps: tuple[Step, ...] = tuple(error.instance_path)
    keyword = error.kind.name
    if keyword == "required":
        path = written((*steps, facts["property"]))
        return Cause(field=path, message="Required value", reason="FieldValueRequired")
    reason, words = _WORDS[keyword]
    message = words(facts)
    if reason not in _SHOWS_NO_VALUE:
        message = f"{shown(error.instance)}: {message}"
    return Cause(field=written(steps), message=f"{_PREFIX[reason]}: {message}", reason=reason)


_PREFIX = {
    "FieldValueInvalid": "Invalid value",
    "FieldValueTypeInvalid": "Invalid value",
    "FieldValueNotSupported": "Unsupported value",
    "FieldValueTooLong": "Too long",
    "FieldValueTooMany": "Too many",
}
_SHOWS_NO_VALUE = frozenset({"FieldValueTooLong", "FieldValueTooMany"})
_FORMAT_HINTS = {
    "date-time": "must be a time such as 2026-01-31T12:00:00Z",
    "duration": "must be a duration such as 300ms, 1.5h or 1h30m",
    "byte": "must be base64",
}
_WORDS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "type": (
        "FieldValueTypeInvalid",
        lambda facts: f"must be of type {' or '.join(facts['types'])}",
    ),
    "enum": (
        "FieldValueNotSupported",
        lambda facts: "supported values: " + ", ".join(map(json.dumps, facts["options"])),
    ),
    "format": ("FieldValueInvalid", lambda facts: _FORMAT_HINTS[facts["format"]]),
    "pattern": ("FieldValueInvalid", lambda facts: f"should match '{facts['pattern']}'"),
    "minimum": (
        "FieldValueInvalid",
        lambda facts: f"should be greater than or equal to {facts['limit']}",
    ),
    "maximum": (
        "FieldValueInvalid",
        lambda facts: f"should be less than or equal to {facts['limit']}",
    ),
    "minLength": (
        "FieldValueInvalid",
        lambda facts: f"should be at least {facts['limit']} chars long",
    ),
    "maxLength": (
        "FieldValueTooLong",
        lambda facts: f"may not be more than {facts['limit']} chars long",
    ),
    "minItems": (
        "FieldValueInvalid",
        lambda facts: f"should have at least {facts['limit']} items",
    ),
    "maxItems": ("FieldValueTooMany", lambda facts: f"must have at most {facts['limit']} items"),
    "maxProperties": (
        "FieldValueTooMany",
        lambda facts: f"must have at most {facts['limit']} items",
    ),
}


@dataclass(frozen=True, slots=True)
class KeyedList:
    """A list whose items must be unique: as a whole, or in the named keys."""

    pattern: tuple[str, ...]
    keys: tuple[str, ...]


def keyed_lists(schema: _Schema, pattern: tuple[str, ...] = ()) -> Iterator[KeyedList]:
    """Every set and map-like list in ``schema``."""
    kind = schema.get("x-kubernetes-list-type")
    if kind in ("set", "map"):
        yield KeyedList(pattern, tuple(schema.get("x-kubernetes-list-map-keys", ())))
    for name, part in schema.get("properties", {}).items():
        yield from keyed_lists(part, (*pattern, name))
    if "items" in schema:
        yield from keyed_lists(schema["items"], (*pattern, "*"))


def duplicate_causes(lists: tuple[KeyedList, ...], document: Any) -> Iterator[Cause]:
    """Duplicate items where they are not allowed; assumes that the schema is satisfied."""
    for keyed in lists:
        for path, items in walk(document, keyed.pattern):
            seen = set()
            for index, item in enumerate(items):
                identity = tuple(item.get(key) for key in keyed.keys) if keyed.keys else item
                if identity in seen:
                    yield _duplicate(f"{path}[{index}]", item, keyed.keys)
                seen.add(identity)


def _duplicate(path: str, item: Any, keys: tuple[str, ...]) -> Cause:
    identity = {key: item.get(key) for key in keys} if keys else item
    message = f"Duplicate value: {shown(identity)}"
    return Cause(field=path, message=message, reason="FieldValueDuplicate")


def unknown_fields(schema: _Schema, document: Any) -> tuple[str, ...]:
    """Paths of fields that are not in ``schema``, at most ``UNKNOWN_FIELDS_MAX``."""
    found: list[str] = []
    for path in _unknown(schema, document, ()):
        found.append(path)
        if len(found) == UNKNOWN_FIELDS_MAX:
            break
    return tuple(found)


def pruned(schema: _Schema, value: Any) -> Any:
    """``value`` without the fields that are not in ``schema``."""
    if isinstance(value, list) and "items" in schema:
        return [pruned(schema["items"], item) for item in value]
    if not isinstance(value, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return value
    if "properties" in schema:
        known = schema["properties"]
        return {key: pruned(known[key], item) for key, item in value.items() if key in known}
    extra = schema.get("additionalProperties")
    if isinstance(extra, Mapping):
        return {key: pruned(extra, item) for key, item in value.items()}
    return value


def _unknown(schema: _Schema, value: Any, steps: tuple[Step, ...]) -> Iterator[str]:
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _unknown(schema["items"], item, (*steps, index))
    elif isinstance(value, dict) and "properties" in schema:
        properties = schema["properties"]
        open_ended = schema.get("x-kubernetes-preserve-unknown-fields", False)
        for key, item in value.items():
            if key in properties:
                yield from _unknown(properties[key], item, (*steps, key))
            elif not open_ended:
                yield written((*steps, str(key)))
