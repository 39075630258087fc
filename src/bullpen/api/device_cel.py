"""CEL for selectors of devices: a thin interface to Google's evaluator, with limits.

An expression comes from a user. It is compiled when the object that has it is admitted, and a
bad one is refused there. Where the evaluator's wheel does not exist, only expressions of plain
comparisons can be used; see ``device_selectors``.

The variable ``device`` has the attributes as fields, and once more in ``device.attributes``;
``device.capacity`` has amounts in base units. Attributes are variables of their own too. A
qualified name ``vendor.example/model`` is also ``device.attributes["vendor.example"].model``;
an unknown domain is an empty map. Quantities are numbers in base units and versions are
strings, with the functions of Kubernetes: ``quantity``, ``semver``, ``isGreaterThan``,
``isLessThan``, ``compareTo``, ``major``, ``minor``, ``patch`` and ``includes``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from bullpen.api.device_selectors import KNOWN_MAX, Expression, parse_expression
from bullpen.errors import BadRequest
from bullpen.kit import quantities

Plain = str | int | float | bool | Sequence[Any]

MISSING_ENGINE = (
    "the expression needs the package cel-expr-python, which is not installed here;"
    " without it, only ==, !=, in, has and && can be used"
)

_NAME = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(?!\s*\()")
_STRING = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"")
_DOMAIN = re.compile(r"\b(?:attributes|capacity)\s*\[\s*['\"]([^'\"]+)['\"]\s*\]")
_WORDS = frozenset({"true", "false", "null", "in", "as", "device"})
_VERSION = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


ITERATIONS_MAX = 10_000
"""When the evaluator gives up on one device; measured, for it has no setting."""

ADDITIONS_MAX = 4
"""How often an expression with loops or bindings may add: each can double a text or a list."""

_GROWING = re.compile(r"\b(replace|join|format|quote)\s*(?://[^\n]*\n\s*)*\(")
"""Functions that make a text many times as long; a few in a row would use up all memory."""

_BINDING = re.compile(
    r"\b(all|exists|exists_one|existsOne|map|filter|bind|optMap|optFlatMap)\s*(?://[^\n]*\n\s*)*\("
)


def checked_expression(text: str) -> Expression:
    """The parsed expression; raises ``BadRequest`` if it can never be evaluated."""
    found = parse_expression(text)
    if found.rest:
        compile_program(found.rest)
    return found


def stored_expression(text: str) -> Expression:
    """The expression of a stored object, which a cluster accepts even if it does not compile."""
    try:
        return checked_expression(text)
    except BadRequest as error:
        return Expression(text, problem=error.message)


class TooCostly(Exception):
    """The evaluator gave up: the expression has more iterations than it allows."""


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled expression."""

    compiled: Any
    names: tuple[str, ...]
    """The attributes it uses as variables."""

    domains: tuple[str, ...]
    """The domains it looks into, which must exist as maps."""

    loops: int
    """How many loops it has."""

    items: int
    """How many items its longest list may have."""

    def iterations(self, longest: int) -> int:
        """The most iterations that it may take on a device whose longest list has so many items."""
        return min(ITERATIONS_MAX, int(max(self.items, longest, 1) ** self.loops))

    def holds(
        self, attributes: Mapping[str, Plain], capacity: Mapping[str, int | float], *, driver: str
    ) -> bool | None:
        """Whether the expression is true of a device; None if it cannot be evaluated.

        Raises ``TooCostly``.
        """
        by_domain = _by_domain(attributes, driver, self.domains)
        own = {"attributes": by_domain, "capacity": _by_domain(capacity, driver, self.domains)}
        data: dict[str, Any] = {"device": {**attributes, **own}}
        data |= {name: attributes[name] for name in self.names if name in attributes}
        try:
            result = self.compiled.eval(data=data).value()
        except RuntimeError as error:
            raise TooCostly from error
        return result if isinstance(result, bool) else None


@lru_cache(maxsize=KNOWN_MAX)
def compile_program(text: str) -> Program:
    """Compile the part of an expression that needs an engine; raises ``BadRequest``."""
    _check_growth(text)
    bare = _STRING.sub("''", text)
    names = tuple(sorted({n for n in _NAME.findall(bare) if n not in _WORDS}))
    try:
        engine = _engine()
    except ImportError as error:
        raise BadRequest(MISSING_ENGINE) from error
    try:
        environment = engine.environment(names)
        compiled = environment.compile(text)
    except RuntimeError as error:
        raise BadRequest(f"the expression does not compile: {_first_line(error)}") from error
    if compiled.return_type().name() not in ("BOOL", "DYN"):
        raise BadRequest("the expression must be true or false")
    loops = sum(match[1] != "bind" for match in _BINDING.finditer(text))
    domains = tuple(sorted(set(_DOMAIN.findall(text))))
    return Program(compiled, names, domains, loops, text.count(",") + 1)


def _check_growth(text: str) -> None:
    """Raises ``BadRequest`` if the expression could use up the memory of the process.

    The evaluator limits iterations and no sizes. Literals count too, so that nothing hides in one.
    """
    growing = _GROWING.search(text)
    if growing is not None:
        raise BadRequest(f"{growing[1]}() is not available in selectors of devices")
    if text.count("+") > ADDITIONS_MAX and _BINDING.search(text):
        raise BadRequest(
            f"an expression with loops or bindings may have at most {ADDITIONS_MAX} additions"
        )


def _by_domain(values: Mapping[str, Any], driver: str, domains: tuple[str, ...]) -> dict[str, Any]:
    """The values by name, and those with a domain once more under it."""
    found: dict[str, Any] = {domain: {} for domain in domains if domain not in values}
    for name, value in values.items():
        domain, slash, short = name.rpartition("/")
        where = found.get(domain if slash else driver)
        if isinstance(where, dict):
            where[short] = value
    return {**found, **values}


def _first_line(error: RuntimeError) -> str:
    text = str(error).removeprefix("INVALID_ARGUMENT: ").removeprefix("ERROR: ")
    return text.splitlines()[0].removeprefix("<input>:") if text else "unknown error"


@dataclass(frozen=True, slots=True)
class _Engine:
    cel: Any
    functions: Sequence[Any]
    extensions: Sequence[Any]

    def environment(self, names: tuple[str, ...]) -> Any:
        variables = dict.fromkeys(("device", *names), self.cel.Type.DYN)
        return self.cel.NewEnv(
            variables=variables, functions=self.functions, extensions=self.extensions
        )


@cache
def _engine() -> _Engine:
    # Loaded on first use: most processes evaluate no selector.
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings

    kinds = cel.Type

    def declared(name: str, result: Any, run: Callable[..., Any], *parameters: Any) -> Any:
        member = name not in ("quantity", "semver")
        overloads = [
            cel.Overload(
                f"{name}_{'_'.join(kind.name().lower() for kind in accepted)}",
                return_type=result,
                parameters=list(accepted),
                is_member=member,
                impl=run,
            )
            for accepted in parameters
        ]
        return cel.FunctionDecl(name, overloads)

    text, number, real = kinds.STRING, kinds.INT, kinds.DOUBLE
    pairs = [(a, b) for a in (number, real) for b in (number, real)] + [(text, text)]
    inclusions = [(kinds.LIST, item) for item in (text, number, kinds.BOOL)]
    inclusions += [(item, item) for item in (text, number, kinds.BOOL)]
    functions = (
        declared("quantity", kinds.DYN, _quantity, (text,)),
        declared("semver", text, _semver, (text,)),
        declared("isGreaterThan", kinds.BOOL, lambda a, b: _compared(a, b) > 0, *pairs),
        declared("isLessThan", kinds.BOOL, lambda a, b: _compared(a, b) < 0, *pairs),
        declared("compareTo", number, _compared, *pairs),
        declared("major", number, lambda a: _version(a)[0][0], (text,)),
        declared("minor", number, lambda a: _version(a)[0][1], (text,)),
        declared("patch", number, lambda a: _version(a)[0][2], (text,)),
        declared("includes", kinds.BOOL, _includes, *inclusions),
    )
    extensions = (
        ext_bindings.ExtBindings(),
        ext_optional.ExtOptional(),
        ext_strings.ExtStrings(),
    )
    return _Engine(cel, functions, extensions)


def _quantity(written: str) -> int | float:
    """A quantity in base units."""
    amount = quantities.parse(written).amount
    return int(amount) if amount == int(amount) else float(amount)


def _semver(written: str) -> str:
    _version(written)
    return written


def _version(written: str) -> tuple[tuple[int, int, int], tuple[object, ...]]:
    """The sort key of a semantic version; a pre-release comes before its release."""
    match = _VERSION.fullmatch(written)
    if match is None:
        raise ValueError(f"{written[:40]!r} is no version such as 1.2.3")
    numbers = (int(match[1]), int(match[2] or 0), int(match[3] or 0))
    if match[4] is None:
        return numbers, (1,)
    parts = (p for p in match[4].split("."))
    return numbers, (0, *((0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts))


def _compared(one: Any, other: Any) -> int:
    a, b = (_version(one), _version(other)) if isinstance(one, str) else (one, other)
    return int(a > b) - int(a < b)


def _includes(values: Any, wanted: Any) -> bool:
    if isinstance(values, list | tuple):
        plain = [getattr(value, "plain_value", lambda v=value: v)() for value in values]
        return any(type(value) is type(wanted) and value == wanted for value in plain)
    return bool(values == wanted)
