"""CEL rules: a thin interface to Google's evaluator.

Rules come from our own definitions, never from a request, so a rule that does not compile
is a bug. As in Kubernetes, a rule that fails to evaluate counts as violated: an object that
cannot be checked is not stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from bullpen.api.paths import Step, find, written
from bullpen.errors import Cause

_Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlacedRule:
    """A rule and the path it applies to; ``*`` stands for each item of a list."""

    pattern: tuple[str, ...]
    rule: Mapping[str, str]
    program: Any

    @property
    def compares(self) -> bool:
        """Whether it refers to the previous state, and so applies only to updates."""
        return "oldSelf" in self.rule["rule"]


def compile_rules(schema: _Schema) -> tuple[PlacedRule, ...]:
    """Every rule in ``schema``, ready to be evaluated."""
    return tuple(
        PlacedRule(pattern, rule, _program(rule["rule"])) for pattern, rule in _rules(schema, ())
    )


def rule_causes(
    rules: tuple[PlacedRule, ...], document: Any, old: Any | None = None
) -> Iterator[Cause]:
    """Rules that ``document`` violates; assumes that it satisfies its schema.

    As in Kubernetes, unchanged parts are not checked again: a rule that became stricter does
    not block updates of objects it would reject today.
    """
    for placed in rules:
        if old is not None and placed.pattern and _is_untouched(placed.pattern[0], document, old):
            continue
        for steps, value in find(document, placed.pattern):
            previous = _previous(old, steps)
            if value == previous or (placed.compares and previous is None):
                continue
            if not holds(placed.program, {"self": value, "oldSelf": previous}):
                yield _cause(placed.rule, steps)


def _rules(
    schema: _Schema, pattern: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, str]]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield pattern, rule
    for name, part in schema.get("properties", {}).items():
        yield from _rules(part, (*pattern, name))
    if "items" in schema:
        yield from _rules(schema["items"], (*pattern, "*"))


def holds(program: Any, data: Mapping[str, Any]) -> bool:
    """Whether ``program`` is true of ``data``; an error counts as false."""
    return bool(program.eval(data=data).value() is True)


@cache
def _program(expression: str) -> Any:
    # Loaded on first use: most processes evaluate no rule.
    from cel_expr_python import cel

    types = {"self": cel.Type.DYN, "oldSelf": cel.Type.DYN}
    return cel.NewEnv(variables=types).compile(expression)


def _is_untouched(section: str, document: Any, old: Any) -> bool:
    return document.get(section) is old.get(section)


def _previous(old: Any, steps: tuple[Step, ...]) -> Any | None:
    """The previous value at ``steps``. Items of lists have no previous state."""
    for step in steps:
        if not isinstance(old, dict):
            return None
        old = old.get(step)
    return old


def _cause(rule: Mapping[str, str], steps: tuple[Step, ...]) -> Cause:
    reason = rule.get("reason", "FieldValueInvalid")
    prefix = "Required value" if reason == "FieldValueRequired" else "Invalid value"
    # The path of a rule of the whole object has nothing before its dot.
    path = (written(steps) + rule.get("fieldPath", "")).removeprefix(".")
    return Cause(field=path, message=f"{prefix}: {rule['message']}", reason=reason)
