"""Selectors of devices: expressions of CEL, split into comparisons that an index answers.

An expression is a conjunction. Conjuncts that compare one attribute with literals (``==``,
``!=``, ``in``, ``has``) become terms; they are evaluated without a CEL engine and mean what
CEL means. The other conjuncts stay text, for the engine.

An attribute is written ``site``, ``device.site``, ``device.attributes.site`` or
``device.attributes["vendor.example/model"]``. A conjunct that cannot be evaluated on a device,
because an attribute is missing, does not match it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from bullpen.errors import BadRequest

EXPRESSION_BYTES_MAX = 10 * 1024
DEPTH_MAX = 32
"""Nested brackets of an expression."""

KNOWN_MAX = 4_096
"""Cached expressions."""

Literal = str | int | bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """An attribute has one of some values, or another one than all of them."""

    attribute: str
    values: tuple[Literal, ...]
    equal: bool = True


@dataclass(frozen=True, slots=True)
class Presence:
    """An attribute exists."""

    attribute: str


Term = Comparison | Presence


@dataclass(frozen=True, slots=True)
class Expression:
    """A selector's text, and what it means: all terms hold, and so does the rest."""

    text: str
    terms: tuple[Term, ...] = ()
    rest: str = ""
    """The conjuncts that need a CEL engine, as one expression; empty if none do."""

    problem: str = ""
    """Why it can never be evaluated; empty if it can."""


@lru_cache(maxsize=KNOWN_MAX)
def parse_expression(text: str) -> Expression:
    """Split an expression; raises ``BadRequest`` if it is too long, too deep or cut off.

    The conjuncts that need an engine are not compiled here.
    """
    if len(text.encode()) > EXPRESSION_BYTES_MAX:
        raise BadRequest(f"the expression has more than {EXPRESSION_BYTES_MAX} bytes")
    tokens = _tokens(text)
    if not tokens:
        raise BadRequest("the expression is empty")
    terms: list[Term] = []
    rest: list[str] = []
    for conjunct in _conjuncts(tokens):
        term = _term([token.text for token in conjunct])
        if term is not None:
            terms.append(term)
        else:
            rest.append(text[conjunct[0].start : conjunct[-1].end] if conjunct else "")
    if "" in rest:
        raise BadRequest(f"'&&' lacks an operand in {_shown(text)}")
    whole = rest[0] if len(rest) == 1 else " && ".join(f"({part})" for part in rest)
    return Expression(text, tuple(terms), whole)


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    start: int
    end: int


_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>'[^'\\\n]*'|"[^"\\\n]*")(?!['"])
    |(?P<other_string>[rRbB]{0,2}(?:'''.*?'''|\"\"\".*?\"\"\"|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"))
    |(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?u?|0x[0-9a-fA-F]+)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<operator>&&|\|\||==|!=|<=|>=|.)
    )""",
    re.VERBOSE | re.DOTALL,
)
_OPEN, _CLOSE = "([{", ")]}"


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    depth, end = 0, len(text.rstrip())
    position = 0
    while position < end:
        match = _TOKEN.match(text, position)
        assert match is not None, "every character is a token"
        start = match.start(match.lastgroup or 0)
        token = _Token(text[start : match.end()], start, match.end())
        depth += (token.text in _OPEN) - (token.text in _CLOSE)
        if not 0 <= depth <= DEPTH_MAX:
            problem = "nests too deep" if depth > 0 else "closes a bracket that is not open"
            raise BadRequest(f"the expression {problem} at position {start}: {_shown(text)}")
        found.append(token)
        position = match.end()
    if depth:
        raise BadRequest(f"the expression has an open bracket at its end: {_shown(text)}")
    return found


def _conjuncts(tokens: list[_Token]) -> list[list[_Token]]:
    """The operands of the outermost ``&&``; the whole if a weaker operator is outermost."""
    depth = 0
    parts: list[list[_Token]] = [[]]
    for token in tokens:
        depth += (token.text in _OPEN) - (token.text in _CLOSE)
        if depth == 0 and token.text in ("||", "?"):
            return [tokens]
        if depth == 0 and token.text == "&&":
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _term(tokens: list[str]) -> Term | None:
    """The term that some tokens are; None if they need an engine."""
    if len(tokens) > 3 and tokens[0] == "has" and tokens[1] == "(" and tokens[-1] == ")":
        named, after = _attribute(tokens[2:-1])
        # Of a bare name ``has`` is an error in CEL; the engine reports it.
        return Presence(named) if named and not after and len(tokens) > 4 else None
    named, after = _attribute(tokens)
    if not named or not after:
        return None
    if after[0] in ("==", "!=") and len(after) == 2:
        value = _literal(after[1])
        return None if value is None else Comparison(named, (value,), after[0] == "==")
    if after[0] == "in" and after[1:2] == ["["] and after[-1] == "]":
        values = [_literal(token) for token in after[2:-1:2]]
        commas = all(token == "," for token in after[3:-1:2]) and (
            len(after) % 2 == 0 or not values
        )
        found = tuple(value for value in values if value is not None)
        return Comparison(named, found) if commas and len(found) == len(values) else None
    return None


_WORDS = frozenset({"true", "false", "null", "in", "has"})


def _attribute(tokens: list[str]) -> tuple[str, list[str]]:
    """The attribute at the begin of some tokens, and the tokens after it."""
    if not tokens or not tokens[0].isidentifier() or tokens[0] in _WORDS:
        return "", tokens
    if tokens[0] != "device":
        return tokens[0], tokens[1:]
    path, rest = _path(tokens[1:])
    if path and path[0] in ("attributes", "capacity"):
        path = path[1:] if path[0] == "attributes" else []
        return ("/".join(path) if len(path) <= 2 else "", rest)
    return (path[0] if len(path) == 1 else "", rest)


def _path(tokens: list[str]) -> tuple[list[str], list[str]]:
    """Field accesses ``.name`` and ``["name"]``, and the tokens after them."""
    path: list[str] = []
    while True:
        if len(tokens) >= 2 and tokens[0] == "." and tokens[1].isidentifier():
            path, tokens = [*path, tokens[1]], tokens[2:]
        elif len(tokens) >= 3 and tokens[0] == "[" and tokens[2] == "]" and tokens[1][0] in "'\"":
            path, tokens = [*path, tokens[1][1:-1]], tokens[3:]
        else:
            return path, tokens


def _literal(token: str) -> Literal | None:
    if token in ("true", "false"):
        return token == "true"
    if token.isascii() and token.isdigit():
        return int(token)
    if len(token) >= 2 and token[0] in "'\"" and token[-1] == token[0] and "\\" not in token:
        return token[1:-1]
    return None


_SHOWN_MAX = 100


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…")
