"""Evaluates the expressions of admission policies as kube-apiserver does.

The functions that Kubernetes adds to CEL, as far as our policies use them, are written again
here; ``make test-cluster`` compares the result with a real kube-apiserver.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_strings

from bullpen.api.admission_rules import AdmissionRule
from bullpen.api.paths import Document
from bullpen.kit import quantities


def denials(
    rules: tuple[AdmissionRule, ...], document: Document, old: Document | None = None
) -> list[str]:
    """The messages of the rules that refuse ``document``; an error refuses, as in a cluster."""
    if old is not None and old["spec"] == document["spec"]:
        return []
    data = {"object": document, "oldObject": old}
    return [
        rule.message
        for rule in rules
        if _program(rule.expression).eval(data=data).value() is not True
    ]


@cache
def _program(expression: str) -> Any:
    return _environment().compile(expression)


@cache
def _environment() -> Any:
    kinds = cel.Type
    functions = [
        _declared("isQuantity", kinds.BOOL, _is_quantity, kinds.STRING, member=False),
        _declared("quantity", kinds.STRING, _known_quantity, kinds.STRING, member=False),
        _declared("compareTo", kinds.INT, _compared, kinds.STRING, kinds.STRING),
        _declared("sum", kinds.DYN, lambda items: sum(_plain(items)), kinds.LIST),
        _declared("max", kinds.DYN, lambda items: max(_plain(items)), kinds.LIST),
        _declared("isSorted", kinds.BOOL, _is_sorted, kinds.LIST),
    ]
    return cel.NewEnv(
        variables={"object": kinds.DYN, "oldObject": kinds.DYN},
        functions=functions,
        extensions=[ext_strings.ExtStrings()],
    )


def _declared(name: str, result: Any, run: Any, *parameters: Any, member: bool = True) -> Any:
    overload = cel.Overload(
        f"{name}_for_policies",
        return_type=result,
        parameters=list(parameters),
        is_member=member,
        impl=run,
    )
    return cel.FunctionDecl(name, [overload])


def _plain(items: Any) -> list[Any]:
    return [getattr(item, "plain_value", lambda item=item: item)() for item in items]


def _is_sorted(items: Any) -> bool:
    return all(one <= other for one, other in pairwise(_plain(items)))


def _is_quantity(text: str) -> bool:
    try:
        quantities.parse(text)
    except ValueError:
        return False
    return True


def _known_quantity(text: str) -> str:
    quantities.parse(text)
    return text


def _compared(one: str, other: str) -> int:
    a, b = quantities.parse(one).amount, quantities.parse(other).amount
    return int(a > b) - int(a < b)
