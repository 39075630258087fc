"""Converts documents to frozen values and back, without loss.

Each dataclass is compiled once into closures; no call uses reflection. For every document
that can be decoded ``encode(decode(cls, document)) == document``: unknown fields, explicit
nulls and empty values, and a duration written ``5m`` where Go writes ``5m0s`` are all
preserved, unless that field was changed.

The one exception: a required field that has a default is always written.

This module does not validate: it rejects only what cannot be converted to its type.
Documents are immutable here as everywhere: a decoded value shares the free-form parts of
its document, and an encoded document those of its value.
"""

from __future__ import annotations

import dataclasses
import logging
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

from bullpen.api.fields import Attribute, Kind, Struct, attributes, per_type
from bullpen.api.forms import (
    MICRO_TIME,
    SCALARS,
    Form,
    Unreadable,
    enum_form,
    list_form,
    map_form,
)
from bullpen.api.paths import Document
from bullpen.errors import Cause, Invalid

log = logging.getLogger("bullpen.api")

S = TypeVar("S", bound=Struct)
K = TypeVar("K", bound=Kind)


@dataclass(frozen=True, slots=True)
class Known(Generic[S]):
    """A document that was decoded before, and its value."""

    document: Mapping[str, Any]
    value: S


def decode(cls: type[S], document: Mapping[str, Any], known: Known[S] | None = None) -> S:
    """The value of ``document``; raises ``Invalid`` naming the first unreadable field.

    Sections that are identical objects in a ``known`` document are not decoded again.
    """
    try:
        if issubclass(cls, Kind):
            document = _without_type(cls, document)
        return cast(S, _decoder(cls)(document, known))
    except Unreadable as problem:
        name = getattr(cls, "kind", cls.__name__)
        cause = Cause(field=problem.path(), message=problem.message, reason=problem.reason)
        raise Invalid(
            f"this {name} cannot be read: {cause.field}: {cause.message}", causes=(cause,)
        ) from None


def decode_or_none(cls: type[K], document: Mapping[str, Any]) -> K | None:
    """The object of ``document``; None, and a log line, if it cannot be decoded.

    For lists and watches, where one unreadable object must not hide the others. Items of a list
    need not repeat their kind.
    """
    try:
        return decode(cls, {"apiVersion": cls.api_version, "kind": cls.kind, **document})
    except Exception as error:
        meta = document.get("metadata") or {}
        key = (meta.get("namespace", ""), meta.get("name", ""))
        facts = {"key": key, "kind": cls.kind, "cause": str(error)}
        log.error("object cannot be read and is left out", extra=facts)  # noqa: TRY400
        return None


def encode(value: Struct) -> Document:
    """The document of ``value``."""
    document: Document = {}
    if isinstance(value, Kind):
        document["apiVersion"] = value.api_version
        document["kind"] = value.kind
    document.update(_form(type(value)).encode(value))
    return document


def encode_section(value: Kind, name: str) -> Any:
    """One section of ``value``'s document."""
    attribute = next(item for item in attributes(type(value)) if item.name == name)
    return _form(attribute.hint).encode(getattr(value, name))


def encode_as(hint: Any, value: object) -> Any:
    """The JSON of ``value`` as a field of type ``hint`` would be written."""
    return _form(hint).encode(value)


def _without_type(cls: type[Kind], document: Mapping[str, Any]) -> Mapping[str, Any]:
    if type(document) is not dict:
        raise Unreadable("must be an object")
    rest = dict(document)
    for name, wanted in (("apiVersion", cls.api_version), ("kind", cls.kind)):
        if rest.pop(name, wanted) != wanted:
            raise Unreadable(f"must be {wanted!r}", "FieldValueInvalid").below(f".{name}")
    return rest


@per_type
def _form(hint: Any) -> Form:
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _struct_form(hint)
    if hint in SCALARS:
        return SCALARS[hint]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return enum_form(hint)
    return _container_form(hint)


def _container_form(hint: Any) -> Form:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType and args[-1] is type(None) and len(args) == 2:
        return _form(args[0])
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return list_form(_form(args[0]))
    if origin is Mapping and args[0] is str:
        return map_form(_form(args[1]))
    raise TypeError(f"no wire form is defined for {hint!r}")


_MISSING: Any = object()
_NULL: tuple[object, Any] = (_MISSING, None)


def _struct_form(cls: type[Struct]) -> Form:
    return Form(decode=_decoder(cls), encode=_struct_encoder(cls))


def _field_form(attribute: Attribute) -> Form:
    return MICRO_TIME if attribute.limits.micro else _form(attribute.hint)


def _omitted(attribute: Attribute) -> object:
    """The value that is omitted, or ``_MISSING``, which equals no value."""
    no_default = attribute.default is dataclasses.MISSING
    return _MISSING if no_default or attribute.limits.required else attribute.default


@per_type
def _decoder(cls: type[Struct]) -> Callable[..., Struct]:
    readers = {attribute.wire: _reader(attribute) for attribute in attributes(cls)}

    def decode_struct(raw: Any, known: Known[Any] | None = None) -> Struct:
        if type(raw) is not dict:
            raise Unreadable("must be an object")
        values: dict[str, Any] = {}
        extra: dict[str, Any] | None = None
        kept: dict[str, tuple[object, Any]] | None = None
        for wire, item in raw.items():
            if wire not in readers:
                extra = extra or {}
                extra[wire] = item
                continue
            name, exact, decode_item, canonical, default = readers[wire]
            if known is not None and item is known.document.get(wire) and item is not None:
                value = getattr(known.value, name)
            elif type(item) is exact:
                value = item
            elif item is None:
                kept = kept or {}
                kept[wire] = _NULL
                continue
            else:
                try:
                    value = decode_item(item)
                except Unreadable as problem:
                    raise problem.below(f".{wire}") from None
            values[name] = value
            if value == default or (canonical is not None and not canonical(item)):
                kept = kept or {}
                kept[wire] = (value, item)
        try:
            return cls(extra=extra, kept=kept, **values)
        except TypeError:
            raise _missing(cls, values) from None

    return decode_struct


def _reader(attribute: Attribute) -> tuple[Any, ...]:
    """Everything the hot loop needs about one field, as a plain tuple."""
    form, omitted = _field_form(attribute), _omitted(attribute)
    # A struct from a document is never the shared default, so it needs no note.
    default = _MISSING if isinstance(omitted, Struct) else omitted
    return attribute.name, form.exact, form.decode, form.canonical, default


def _missing(cls: type[Struct], values: Mapping[str, Any]) -> Unreadable:
    wire = next(
        attribute.wire
        for attribute in attributes(cls)
        if attribute.default is dataclasses.MISSING and attribute.name not in values
    )
    return Unreadable("Required value", "FieldValueRequired").below(f".{wire}")


def _struct_encoder(cls: type[Struct]) -> Callable[[Any], Document]:
    # A struct is omitted only if it is the shared default itself: one that was decoded, or
    # constructed explicitly, is written even if it equals the default.
    plan = tuple(
        (attribute.wire, omitted, not isinstance(omitted, Struct), _field_form(attribute).encode)
        for attribute, omitted in ((item, _omitted(item)) for item in attributes(cls))
    )
    take = _taker(tuple(attribute.name for attribute in attributes(cls)))

    def encode_struct(value: Any) -> Document:
        document: Document = {}
        kept = value.kept
        for item, (wire, omitted, compared, encode_item) in zip(take(value), plan, strict=True):
            leave_out = item is omitted or item is None or (compared and item == omitted)
            if (
                kept is not None
                and wire in kept
                and _is_untouched(kept[wire], item, leave_out=leave_out)
            ):
                document[wire] = _fresh(kept[wire][1])
            elif not leave_out:
                document[wire] = encode_item(item)
        if value.extra is not None:
            document.update(value.extra)
        return document

    return encode_struct


def _taker(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Fetches all named attributes at once; ``attrgetter`` behaves differently below two."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _is_untouched(spelled: tuple[object, Any], item: object, *, leave_out: bool) -> bool:
    return spelled[0] is item or (spelled is _NULL and leave_out)


def _fresh(raw: Any) -> Any:
    """``raw``, or a copy: the writer of a value must not fill an empty map of the document."""
    return raw.copy() if isinstance(raw, dict | list) else raw
