"""How the types of fields are read from JSON and written to it.

The building blocks of ``codec``: scalars, enums, lists and maps. Each form is a pair of
functions created once; none of them knows about structs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any

from bullpen.kit import durations, times


@dataclass(frozen=True, slots=True)
class Form:
    """How one type is read and written."""

    decode: Callable[[Any], Any]
    encode: Callable[[Any], Any]
    canonical: Callable[[Any], bool] | None = None
    """Whether a raw value has our spelling; None if it always has."""

    exact: type | None = None
    """Raw values of exactly this type are used as they are, without a call."""


class Unreadable(Exception):
    """Carries the path outwards, innermost part first."""

    def __init__(self, message: str, reason: str = "FieldValueTypeInvalid") -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.parts: list[str] = []

    def below(self, part: str) -> Unreadable:
        self.parts.append(part)
        return self

    def path(self) -> str:
        return "".join(reversed(self.parts)).lstrip(".")


def list_form(form: Form) -> Form:
    decode_one, encode_one, exact = form.decode, form.encode, form.exact

    def decode_list(raw: Any) -> tuple[Any, ...]:
        if type(raw) is not list:
            raise Unreadable("must be an array")
        values: list[Any] = []
        for item in raw:
            try:
                values.append(item if type(item) is exact else decode_one(item))
            except Unreadable as problem:
                raise problem.below(f"[{len(values)}]") from None
        return tuple(values)

    def encode_list(values: tuple[Any, ...]) -> list[Any]:
        return [encode_one(item) for item in values]

    return Form(decode_list, encode_list, _all_canonical(form.canonical, iter))


def map_form(form: Form) -> Form:
    decode_one, encode_one, exact = form.decode, form.encode, form.exact

    def decode_map(raw: Any) -> dict[str, Any]:
        if type(raw) is not dict:
            raise Unreadable("must be an object")
        values = {}
        for key, item in raw.items():
            try:
                values[key] = item if type(item) is exact else decode_one(item)
            except Unreadable as problem:
                raise problem.below(f"[{key}]") from None
        return values

    def encode_map(values: Mapping[str, Any]) -> dict[str, Any]:
        return {key: encode_one(item) for key, item in values.items()}

    return Form(decode_map, encode_map, _all_canonical(form.canonical, dict.values))


def _all_canonical(
    one: Callable[[Any], bool] | None, items: Callable[[Any], Any]
) -> Callable[[Any], bool] | None:
    if one is None:
        return None
    return lambda raw: all(one(item) for item in items(raw))


def enum_form(cls: type[StrEnum]) -> Form:
    members = {member.value: member for member in cls}

    def decode_enum(raw: Any) -> StrEnum:
        found = members.get(raw) if type(raw) is str else None
        if found is None:
            raise Unreadable(f"must be one of {', '.join(members)}", "FieldValueNotSupported")
        return found

    return Form(decode_enum, lambda value: value.value)


def _same(value: Any) -> Any:
    return value


def _refused(message: str) -> Callable[[Any], Any]:
    """For types whose own values are never passed: any argument is of another type."""

    def refuse(raw: Any) -> Any:
        raise Unreadable(message)

    return refuse


def _decode_float(raw: Any) -> int:
    # JSON has one number type: some writers send 3.0.
    if type(raw) is float and raw.is_integer():
        return int(raw)
    raise Unreadable("must be a whole number")


def _decode_int_or_str(raw: Any) -> int | str:
    if type(raw) is not int and type(raw) is not str:
        raise Unreadable("must be a whole number or a string")
    return raw


def _text(raw: Any) -> str:
    if type(raw) is not str:
        raise Unreadable("must be a string")
    return raw


def _decode_time(raw: Any) -> datetime:
    try:
        return times.parse(_text(raw))
    except ValueError as error:
        raise Unreadable(str(error), "FieldValueInvalid") from None


def _is_whole_second_utc(raw: str) -> bool:
    return len(raw) == 20


def _is_microsecond_utc(raw: str) -> bool:
    return len(raw) == 27 and raw[26] == "Z"


def _decode_duration(raw: Any) -> timedelta:
    try:
        return _duration(_text(raw))[0]
    except ValueError as error:
        raise Unreadable(str(error), "FieldValueInvalid") from None


def _is_go_text(raw: str) -> bool:
    return _duration(raw)[1]


@lru_cache(maxsize=1024)
def _duration(raw: str) -> tuple[timedelta, bool]:
    """The duration, and whether Go would write it this way. A lab uses few distinct ones."""
    duration = durations.parse(raw)
    return duration, durations.text(duration) == raw


MICRO_TIME = Form(_decode_time, times.micro_text, _is_microsecond_utc)
SCALARS: dict[Any, Form] = {
    str: Form(_refused("must be a string"), _same, exact=str),
    bool: Form(_refused("must be true or false"), _same, exact=bool),
    int: Form(_decode_float, _same, exact=int),
    int | str: Form(_decode_int_or_str, _same),
    object: Form(_same, _same),
    datetime: Form(_decode_time, times.text, _is_whole_second_utc),
    timedelta: Form(_decode_duration, durations.text, _is_go_text),
}
