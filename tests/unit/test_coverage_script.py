"""`make coverage` compares what it measures with the gaps that are named."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COVERAGE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "coverage"))

REPORT = {
    "files": {
        "src/bullpen/core/a.py": {
            "functions": {
                "whole": {"missing_lines": [], "missing_branches": []},
                "Half.way": {"missing_lines": [7], "missing_branches": [[6, 7], [8, -5]]},
                "": {"missing_lines": [1], "missing_branches": []},
            },
            "summary": {
                "covered_branches": 3,
                "num_branches": 4,
                "covered_lines": 8,
                "num_statements": 10,
            },
        }
    }
}


def test_gaps_of_coverage_are_found_by_function() -> None:
    found = list(COVERAGE["gaps"](REPORT))
    assert [gap.name for gap in found] == [("core/a.py", "Half.way"), ("core/a.py", "-")]
    assert str(found[0]) == "core/a.py  Half.way  line 7, 8 → exit"
    assert "| `core` | 3 of 4 (75.0%) | 8 of 10 (80.0%) |" in COVERAGE["summary"](REPORT)


def test_gaps_of_coverage_are_named_in_a_table() -> None:
    page = (
        "| file | functions | why |\n|---|---|---|\n| `core/a.py` | `Half.way`, `-` | because |\n"
    )
    assert COVERAGE["named_gaps"](page) == {("core/a.py", "Half.way"), ("core/a.py", "-")}


def test_the_page_about_coverage_names_functions_that_exist() -> None:
    for file, function in COVERAGE["named_gaps"](COVERAGE["PAGE"].read_text()):
        text = (ROOT / "src" / "bullpen" / file).read_text()
        name = function.rpartition(".")[2]
        assert function == "-" or f"def {name}(" in text, f"{file} has no {function}"
