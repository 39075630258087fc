"""Mutants by rule: every place in the code that one of a few operators can break.

``places`` lists them for a package, ``sample`` chooses some at random. What only describes the
code is left out: docstrings, assertions, log lines, type annotations and constants that are
bounds of waiting, which tests do not wait for.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("core", "controllers", "services")

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SILENT = frozenset({"log", "logging", "assert_never", "super"})


@dataclass(frozen=True)
class Place:
    """One change of the source."""

    file: str
    """Below ``src/bullpen``."""

    line: int
    last_line: int
    operator: str
    start: int
    end: int
    """Where the changed text is, in bytes."""

    text: str
    """What replaces it."""

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.operator}: {' '.join(self.text.split())[:60]}"


def sample(root: Path, count: int, *, seed: int) -> list[Place]:
    """So many mutants, each place equally likely; the same seed gives the same ones."""
    found = [place for package in PACKAGES for place in places(root, package)]
    return random.Random(seed).sample(found, min(count, len(found)))


def places(root: Path, package: str) -> Iterator[Place]:
    """Every place of a package, in a fixed order."""
    for path in sorted((root / package).rglob("*.py")):
        yield from _places_of(path.read_bytes(), path.relative_to(root).as_posix())


def _places_of(source: bytes, file: str) -> Iterator[Place]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _relevant(ast.parse(source)):
        for operator, changed in _changes(node):
            assert node.end_lineno is not None and node.end_col_offset is not None  # noqa: PT018
            yield Place(
                file=file,
                line=node.lineno,
                last_line=node.end_lineno,
                operator=operator,
                start=starts[node.lineno - 1] + node.col_offset,
                end=starts[node.end_lineno - 1] + node.end_col_offset,
                text=_text(changed),
            )


def _text(changed: ast.expr | ast.stmt) -> str:
    text = ast.unparse(ast.fix_missing_locations(changed))
    return f"({text})" if isinstance(changed, ast.expr) else text


def _relevant(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """The statements and expressions that do something."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Assert | ast.Import | ast.ImportFrom | ast.arg | ast.keyword):
            if isinstance(child, ast.keyword):
                yield from _relevant(child)
            continue
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if isinstance(child, ast.AnnAssign):
            if child.value is not None:
                yield from _relevant(child.value)
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for statement in child.body:
                yield from _with_inner(statement)
            continue
        yield from _with_inner(child)


def _with_inner(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    if isinstance(node, ast.Assert) or _is_silent(node):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.expr | ast.stmt):
        yield node
    yield from _relevant(node)


def _is_silent(node: ast.AST) -> bool:
    """Whether a statement only logs."""
    call = node.value if isinstance(node, ast.Expr) else None
    call = call.value if isinstance(call, ast.Await) else call
    if not isinstance(call, ast.Call):
        return False
    names = {found.id for found in ast.walk(call.func) if isinstance(found, ast.Name)}
    return bool(names & _SILENT)


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    for change in _OPERATORS:
        changed = change(node)
        if changed is not None:
            yield change.__name__.strip("_").replace("_", " "), changed


def _another_comparison(node: ast.AST) -> ast.expr | None:
    if not isinstance(node, ast.Compare) or type(node.ops[0]) not in _COMPARISONS:
        return None
    changed = copy.deepcopy(node)
    changed.ops[0] = _COMPARISONS[type(node.ops[0])]()
    return changed


def _and_or(node: ast.AST) -> ast.expr | None:
    if not isinstance(node, ast.BoolOp):
        return None
    other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    return ast.BoolOp(op=other, values=copy.deepcopy(node.values))


def _without_not(node: ast.AST) -> ast.expr | None:
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return copy.deepcopy(node.operand) if negated and isinstance(node, ast.UnaryOp) else None


def _opposite_constant(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return ast.Constant(value=not node.value)
    return None


def _plus_minus(node: ast.AST) -> ast.expr | None:
    if not isinstance(node, ast.BinOp) or type(node.op) not in _ARITHMETIC:
        return None
    if any(isinstance(found, ast.JoinedStr) for found in ast.walk(node)):
        return None
    changed = copy.deepcopy(node)
    changed.op = _ARITHMETIC[type(node.op)]()
    return changed


def _another_function(node: ast.AST) -> ast.expr | None:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return None
    if node.func.id not in _CALLS:
        return None
    changed = copy.deepcopy(node)
    changed.func = ast.Name(id=_CALLS[node.func.id], ctx=ast.Load())
    return changed


def _other_branch(node: ast.AST) -> ast.expr | None:
    """Of ``a if c else b`` the value for the opposite condition."""
    if not isinstance(node, ast.IfExp):
        return None
    test = ast.UnaryOp(op=ast.Not(), operand=copy.deepcopy(node.test))
    return ast.IfExp(test=test, body=copy.deepcopy(node.body), orelse=copy.deepcopy(node.orelse))


def _left_out(node: ast.AST) -> ast.stmt | None:
    """A call or assignment whose result nobody needs at once."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        return ast.Pass()
    targets = node.targets if isinstance(node, ast.Assign) else ()
    if targets and all(isinstance(found, ast.Attribute | ast.Subscript) for found in targets):
        return ast.Pass()
    return ast.Pass() if isinstance(node, ast.AugAssign) else None


_OPERATORS: tuple[Callable[[ast.AST], ast.expr | ast.stmt | None], ...] = (
    _another_comparison,
    _and_or,
    _without_not,
    _opposite_constant,
    _plus_minus,
    _another_function,
    _other_branch,
    _left_out,
)
