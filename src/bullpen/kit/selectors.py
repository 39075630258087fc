"""Label selectors with Kubernetes' syntax and semantics, together with field selectors.

A selector is a frozen value: parse it once, match it often. ``str`` gives the canonical
form, which Jumpstarter's client compares byte by byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from bullpen.errors import BadRequest
from bullpen.kit.fieldselectors import FieldSelector, FieldTerm, parse_fields
from bullpen.kit.names import label_key_problem, label_value_problem

__all__ = [
    "EVERYTHING",
    "REQUIREMENTS_MAX",
    "FieldSelector",
    "FieldTerm",
    "Operator",
    "Requirement",
    "Selector",
    "from_parts",
    "parse_fields",
    "parse_labels",
    "requirement",
]

REQUIREMENTS_MAX = 1_000
"""Far beyond any legitimate selector; limits what one request can make us evaluate."""

TEXT_LENGTH_MAX = 65_536
"""Length of a selector as text; limits what one request can make us parse."""

KNOWN_MAX, KNOWN_LABELS_MAX = 1_000, 8
"""Cached selectors, and the labels a cached one may have."""


class Operator(StrEnum):
    EQUALS = "="
    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    DOES_NOT_EXIST = "!"
    GREATER_THAN = ">"
    LESS_THAN = "<"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label. Construct it with ``requirement``, which validates."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()
    """Sorted, without duplicates."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case Operator.EQUALS | Operator.IN:
                return value is not None and value in self.values
            case Operator.NOT_IN:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
            case Operator.GREATER_THAN | Operator.LESS_THAN:
                return _compares(value, self.operator, int(self.values[0]))

    def __str__(self) -> str:
        match self.operator:
            case Operator.EXISTS:
                return self.key
            case Operator.DOES_NOT_EXIST:
                return f"!{self.key}"
            case Operator.IN | Operator.NOT_IN:
                return f"{self.key} {self.operator} ({','.join(self.values)})"
            case Operator.EQUALS | Operator.GREATER_THAN | Operator.LESS_THAN:
                return f"{self.key}{self.operator}{self.values[0]}"


def _compares(value: str | None, operator: Operator, bound: int) -> bool:
    if value is None or not _INTEGER.fullmatch(value):
        return False
    return int(value) > bound if operator is Operator.GREATER_THAN else int(value) < bound


# A label value cannot begin with a sign, so there are no negative numbers to compare.
_INTEGER = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Selector:
    """Requirements that must all hold; an empty selector matches everything."""

    requirements: tuple[Requirement, ...] = ()
    """Sorted by key."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)

    def equalities(self) -> dict[str, str]:
        """The ``key=value`` part: labels that a matching object must have."""
        return {
            item.key: item.values[0]
            for item in self.requirements
            if item.operator is Operator.EQUALS
        }

    def __str__(self) -> str:
        return ",".join(str(requirement) for requirement in self.requirements)

    def __bool__(self) -> bool:
        """Whether it has any requirements."""
        return bool(self.requirements)


EVERYTHING = Selector()


def requirement(key: str, operator: Operator, values: Iterable[str] = ()) -> Requirement:
    """A validated requirement; raises ``BadRequest``."""
    ordered = tuple(sorted(set(values)))
    problem = _requirement_problem(key, operator, ordered)
    if problem:
        raise BadRequest(f"the selector's requirement on {_shown(key)!r} is wrong: {problem}")
    return Requirement(key, operator, ordered)


def _requirement_problem(key: str, operator: Operator, values: tuple[str, ...]) -> str | None:
    wrong = ((value, label_value_problem(value)) for value in values)
    return (
        label_key_problem(key)
        or _count_problem(operator, values)
        or next((f"value {_shown(value)!r} {why}" for value, why in wrong if why), None)
    )


def _count_problem(operator: Operator, values: tuple[str, ...]) -> str | None:
    if operator in (Operator.IN, Operator.NOT_IN):
        return None if values else f"'{operator}' needs at least one value"
    if operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST):
        return "it asks for presence or absence only and takes no values" if values else None
    if operator is Operator.EQUALS:
        return None if len(values) == 1 else "'=' needs exactly one value"
    number = len(values) == 1 and _INTEGER.fullmatch(values[0])
    return None if number else f"'{operator}' needs a whole number"


def _shown(text: str) -> str:
    """``text`` for an error message: untrusted callers may send megabytes."""
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"


_SHOWN_MAX = 100


_OBJECT_OPERATORS = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.DOES_NOT_EXIST,
}


def from_parts(
    match_labels: Mapping[str, str],
    match_expressions: Iterable[tuple[str, str, tuple[str, ...]]] = (),
) -> Selector:
    """The selector of ``matchLabels`` and (key, operator, values) expressions."""
    expressions = tuple(match_expressions)
    if not expressions and len(match_labels) <= KNOWN_LABELS_MAX:
        # Every lease pass needs the selectors of all waiting leases, and they are few and alike.
        return _of_labels(tuple(match_labels.items()))
    found = _equalities(match_labels.items())
    for key, name, values in expressions:
        operator = _OBJECT_OPERATORS.get(name)
        if operator is None:
            known = ", ".join(_OBJECT_OPERATORS)
            raise BadRequest(
                f"the selector's operator {_shown(name)!r} is unknown; known are {known}"
            )
        found.append(requirement(key, operator, values))
    return _sorted(found)


@lru_cache(maxsize=KNOWN_MAX)
def _of_labels(labels: tuple[tuple[str, str], ...]) -> Selector:
    return _sorted(_equalities(labels))


def _equalities(labels: Iterable[tuple[str, str]]) -> list[Requirement]:
    return [requirement(key, Operator.EQUALS, (value,)) for key, value in labels]


def _sorted(found: list[Requirement]) -> Selector:
    if len(found) > REQUIREMENTS_MAX:
        raise BadRequest(f"the selector has more than {REQUIREMENTS_MAX} requirements")
    return Selector(tuple(sorted(found, key=lambda item: item.key)))


def parse_labels(text: str) -> Selector:
    """Parse a label selector; raises ``BadRequest`` with position and hint.

    The grammar is Kubernetes': ``key``, ``!key``, ``key=v``, ``key==v``, ``key!=v``, ``key>1``,
    ``key<1``, ``key in (a,b)``, ``key notin (a,b)``, joined by commas. There is no quoting: no
    label needs it.
    """
    if len(text) > TEXT_LENGTH_MAX:
        raise BadRequest(f"the selector has more than {TEXT_LENGTH_MAX} characters")
    return _Parser(text).selector()


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    """Empty at the end."""

    position: int

    @property
    def is_word(self) -> bool:
        return self.text != "" and self.text[0] not in "=!(),<>"


_TOKEN = re.compile(r"[ \t\r\n]*(==|!=|[=!(),<>]|[^ \t\r\n=!(),<>]+|$)")
_BINARY = {
    "=": Operator.EQUALS,
    "==": Operator.EQUALS,
    "!=": Operator.NOT_IN,
    ">": Operator.GREATER_THAN,
    "<": Operator.LESS_THAN,
}
_SETS = {"in": Operator.IN, "notin": Operator.NOT_IN}


class _Parser:
    """A recursive descent parser with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [_Token(found[1], found.start(1)) for found in _TOKEN.finditer(text)]
        self._next = 0

    def selector(self) -> Selector:
        found: list[Requirement] = []
        if self._ahead().text == "":
            return EVERYTHING
        while True:
            found.append(self._requirement())
            if self._ahead().text == "" or len(found) > REQUIREMENTS_MAX:
                return _sorted(found)
            self._expect(",", "requirements are joined by ','")

    def _requirement(self) -> Requirement:
        start = self._ahead()
        if start.text == "!":
            self._take()
            return self._checked(start, self._word("a label key").text, Operator.DOES_NOT_EXIST)
        key = self._word("a label key").text
        operator = self._ahead()
        if operator.text in ("", ","):
            return self._checked(start, key, Operator.EXISTS)
        self._take()
        if operator.text in _SETS:
            return self._checked(start, key, _SETS[operator.text], self._values())
        if operator.text in _BINARY:
            return self._checked(start, key, _BINARY[operator.text], (self._value(),))
        raise self._wrong(operator, "an operator: =, ==, !=, in, notin, > or <")

    def _values(self) -> list[str]:
        self._expect("(", "the values of 'in' and 'notin' stand in parentheses")
        values = [self._value()]
        while self._ahead().text == ",":
            self._take()
            values.append(self._value())
        self._expect(")", "values are separated by ',' and closed by ')'")
        return values

    def _value(self) -> str:
        """A value, which may be empty; ``in`` and ``notin`` are values here."""
        if self._ahead().text in ("", ",", ")"):
            return ""
        return self._word("a value").text

    def _checked(
        self, start: _Token, key: str, operator: Operator, values: Iterable[str] = ()
    ) -> Requirement:
        try:
            return requirement(key, operator, values)
        except BadRequest as error:
            raise self._error(start, error.message) from None

    def _word(self, wanted: str) -> _Token:
        token = self._take()
        if not token.is_word:
            raise self._wrong(token, wanted)
        return token

    def _expect(self, text: str, why: str) -> None:
        token = self._take()
        if token.text != text:
            raise self._wrong(token, f"'{text}': {why}")

    def _ahead(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._ahead()
        # The last token is the end marker, which is never consumed.
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _wrong(self, token: _Token, wanted: str) -> BadRequest:
        found = f"'{_shown(token.text)}'" if token.text else "the end"
        return self._error(token, f"found {found}, expected {wanted}")

    def _error(self, token: _Token, what: str) -> BadRequest:
        where = f"'{_shown(self._text)}' at position {token.position}"
        return BadRequest(f"unable to parse label selector {where}: {what}")
