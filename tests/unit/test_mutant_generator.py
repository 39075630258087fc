"""The mutants that ``scripts/mutants --generated`` makes: sound, and where they can matter."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATOR: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "mutant_generator.py"))


def mutants(source: str) -> list[str]:
    found = GENERATOR["_places_of"](source.encode(), "a.py")
    return [place.applied(source.encode()).decode() for place in found]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", "x = (a <= b)"),
        ("x = a is None", "x = (a is not None)"),
        ("x = a and b", "x = (a or b)"),
        ("x = not a", "x = (a)"),
        ("x = True", "x = (False)"),
        ("x = a + b", "x = (a - b)"),
        ("x = min(a, b)", "x = (max(a, b))"),
        ("x = a if c else b", "x = (a if not c else b)"),
        ("f(a)", "pass"),
        ("x.y = a", "pass"),
        ("x += 1", "pass"),
    ],
)
def test_each_operator_breaks_its_place(source: str, expected: str) -> None:
    assert expected in mutants(source)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param('"""What it is for."""', id="a docstring"),
        pytest.param("assert a < b", id="an assertion"),
        pytest.param('log.info("done", extra={"key": a is None})', id="a log line"),
        pytest.param("x: bool | None", id="an annotation"),
        pytest.param("@dataclass(frozen=True)\nclass A:\n    x: int", id="a decorator"),
    ],
)
def test_what_only_describes_the_code_is_left_alone(source: str) -> None:
    assert mutants(source) == []


@pytest.mark.slow
def test_a_sample_is_the_same_for_the_same_seed_and_can_be_parsed() -> None:
    sample, root = GENERATOR["sample"], ROOT / "src" / "bullpen"
    chosen = sample(root, 50, seed=1)
    assert [str(place) for place in chosen] == [str(p) for p in sample(root, 50, seed=1)]
    assert [str(place) for place in chosen] != [str(p) for p in sample(root, 50, seed=2)]
    for place in chosen:
        source = (root / place.file).read_bytes()
        changed = place.applied(source)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source)), str(place)
