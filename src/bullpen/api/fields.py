"""How a kind is defined: frozen dataclasses with constraints on their fields.

``codec`` reads these definitions to convert documents to values and back, ``schema`` to
describe them as OpenAPI. Nothing here reads or checks a document.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, get_type_hints

T = TypeVar("T")

_KEY = "bullpen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A CEL rule over one struct, as a CRD's ``x-kubernetes-validations`` has it."""

    rule: str
    message: str
    field_path: str = ""
    reason: str = "FieldValueInvalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The constraints of a field beyond its type."""

    description: str
    name: str = ""
    """Wire name, if it is not the attribute's name in camelCase."""

    required: bool = False
    """Must be in the document; always written."""

    defaulted: bool = False
    """The attribute's default is also the schema's: an absent field has exactly that value."""

    default: object = None
    """The schema's default where it differs from the attribute's; JSON."""

    nullable: bool = False
    micro: bool = False
    """A MicroTime: written with microseconds."""

    schema: Mapping[str, object] = field(default_factory=dict)
    """Further OpenAPI keywords of the field itself, such as ``minimum``."""

    items: Mapping[str, object] = field(default_factory=dict)
    """Further OpenAPI keywords of a list's items or a map's values."""


def about(
    description: str,
    *,
    name: str = "",
    required: bool = False,
    defaulted: bool = False,
    default: object = None,
    nullable: bool = False,
    micro: bool = False,
    items: Mapping[str, object] | None = None,
    list_keys: tuple[str, ...] = (),
    list_type: str = "",
    **schema: object,
) -> dict[str, Limits]:
    """Metadata for ``dataclasses.field``: the description, then the constraints."""
    keywords = {_KEYWORDS.get(key, key): value for key, value in schema.items()}
    if list_keys:
        keywords["x-kubernetes-list-type"] = "map"
        keywords["x-kubernetes-list-map-keys"] = list(list_keys)
    elif list_type:
        keywords["x-kubernetes-list-type"] = list_type
    limits = Limits(
        description=description,
        name=name,
        required=required,
        defaulted=defaulted,
        default=default,
        nullable=nullable,
        micro=micro,
        items=items or {},
        schema=keywords,
    )
    return {_KEY: limits}


_KEYWORDS = {
    "min_length": "minLength",
    "max_length": "maxLength",
    "max_properties": "maxProperties",
    "max_items": "maxItems",
    "min_items": "minItems",
    "preserve_unknown": "x-kubernetes-preserve-unknown-fields",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Struct:
    """A JSON object as a frozen value. Unknown fields are preserved.

    Both hidden fields survive ``dataclasses.replace``: a value that is read, changed and
    written keeps everything that this release does not know.
    """

    rules: ClassVar[tuple[Rule, ...]] = ()
    atomic: ClassVar[bool] = False
    """Server-side apply owns the whole object or none of it."""

    extra: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    """Fields of the document that are not in the definition, unchanged."""

    kept: Mapping[str, tuple[object, Any]] | None = field(default=None, repr=False, compare=False)
    """By wire name, a value and its spelling in the document, if ours would differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Struct):
    """A whole object, with its apiVersion and kind."""

    api_version: ClassVar[str]
    kind: ClassVar[str]
    selected: ClassVar[str] = ""
    """Label selector of the objects of this kind that are listed and watched; empty for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """One field of a struct, as the codec and the schema see it."""

    name: str
    wire: str
    hint: Any
    limits: Limits
    default: object
    """``dataclasses.MISSING`` if the constructor needs it."""


def per_type(build: Callable[[Any], T]) -> Callable[[Any], T]:
    """``build``, cached per type."""
    built: dict[Any, T] = {}

    def get(cls: Any) -> T:
        found = built.get(cls)
        if found is None:
            found = built[cls] = build(cls)
        return found

    return get


@per_type
def attributes(cls: Any) -> tuple[Attribute, ...]:
    """The fields of ``cls`` that appear in documents, in order of definition."""
    hints = get_type_hints(cls)
    return tuple(
        _attribute(item, hints[item.name])
        for item in dataclasses.fields(cls)
        if _KEY in item.metadata
    )


def _attribute(item: dataclasses.Field[Any], hint: Any) -> Attribute:
    limits: Limits = item.metadata[_KEY]
    factory = item.default_factory
    default = item.default if factory is dataclasses.MISSING else factory()
    return Attribute(
        name=item.name,
        wire=limits.name or camel_case(item.name),
        hint=hint,
        limits=limits,
        default=default,
    )


def camel_case(name: str) -> str:
    """``begin_time`` → ``beginTime``; a trailing underscore only avoids a keyword."""
    first, *rest = name.rstrip("_").split("_")
    return first + "".join(word.capitalize() for word in rest)
