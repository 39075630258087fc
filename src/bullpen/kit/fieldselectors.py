"""Field selectors: ``metadata.name=rpi4,status.phase!=Active``.

A selector is a frozen value over dotted paths. The server decides which fields a kind
supports, not this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bullpen.errors import BadRequest

TERMS_MAX = 1_000
"""Far beyond any legitimate selector; limits what one request can make us evaluate."""


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """One condition on one field."""

    field: str
    """Dotted path, such as ``metadata.name``."""

    value: str
    equal: bool
    """False for ``!=``."""

    def matches(self, document: Mapping[str, Any]) -> bool:
        return (_text_at(document, self.field) == self.value) is self.equal

    def __str__(self) -> str:
        return f"{self.field}{'=' if self.equal else '!='}{_escaped(self.value)}"


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Conditions on fields that must all hold; an empty selector matches everything."""

    terms: tuple[FieldTerm, ...] = ()

    def matches(self, document: Mapping[str, Any]) -> bool:
        return all(term.matches(document) for term in self.terms)

    def exact(self, field: str) -> str | None:
        """The only value of ``field`` that can match; None if several can."""
        return next((term.value for term in self.terms if term.equal and term.field == field), None)

    def __str__(self) -> str:
        return ",".join(str(term) for term in self.terms)

    def __bool__(self) -> bool:
        """Whether it has any terms."""
        return bool(self.terms)


def parse_fields(text: str) -> FieldSelector:
    """The field selector ``text`` describes; raises ``BadRequest`` with position and hint.

    Terms are ``path=value``, ``path==value`` or ``path!=value``, joined by
    commas. In a value, a backslash takes the next ``,``, ``=`` or backslash
    literally.
    """
    terms = []
    for found in _TERM.finditer(text):
        if not found[0].strip():
            continue
        terms.append(_field_term(found[0], text, found.start()))
        if len(terms) > TERMS_MAX:
            raise BadRequest(f"the selector has more than {TERMS_MAX} terms")
    return FieldSelector(tuple(terms))


# Each of these takes linear time, whatever an untrusted caller sends.
_TERM = re.compile(r"(?:\\.|[^,\\]|\\$)+", re.DOTALL)
_OPERATOR = re.compile(r"!=|==|=")
_FIELD = re.compile(r"[A-Za-z0-9_./-]+")
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)


def _field_term(term: str, text: str, position: int) -> FieldTerm:
    operator = _OPERATOR.search(term)
    field = term[: operator.start()].strip() if operator else ""
    if operator is None or not _FIELD.fullmatch(field):
        hint = "expected field=value or field!=value, such as metadata.name=rpi4"
        raise _unparsable(text, position, f"found '{term.strip()[:100]}', {hint}")
    value = _unescaped(term[operator.end() :], text, position)
    return FieldTerm(field, value, operator[0] != "!=")


def _unescaped(value: str, text: str, position: int) -> str:
    if any(found[1] not in (",", "=", "\\") for found in _ESCAPE.finditer(value)):
        what = "a backslash stands only before ',', '=' or another backslash"
        raise _unparsable(text, position, what)
    if "=" in _ESCAPE.sub("", value):
        raise _unparsable(text, position, "an '=' in a value is written '\\='")
    return _ESCAPE.sub(r"\1", value)


def _escaped(value: str) -> str:
    return re.sub(r"([\\,=])", r"\\\1", value)


def _unparsable(text: str, position: int, what: str) -> BadRequest:
    shown = text if len(text) <= 100 else text[:100] + "…"
    return BadRequest(f"unable to parse field selector '{shown}' at position {position}: {what}")


def _text_at(document: Any, path: str) -> str:
    """The scalar at ``path`` in the notation of selectors; empty if there is none."""
    for name in path.split("."):
        document = document.get(name) if isinstance(document, Mapping) else None
    if isinstance(document, bool):
        return "true" if document else "false"
    return str(document) if isinstance(document, str | int | float) else ""
