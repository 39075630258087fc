"""Figures in a file for people: what surrounds them stays, the plot says the same."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bullpen.bench import report
from bullpen.bench.measure import Goal, Result, compare
from bullpen.errors import BadRequest

NOW = datetime(2026, 1, 31, tzinfo=UTC)
REACHED = compare("quick & good", [2.0], [1.0], unit="ms", goal=Goal(3, at_least=False))
MISSED = compare("slow", [1.0], [10.0], unit="MB/s", goal=Goal(0.7))
KNOWN = compare("only known", [1.0], [2.0], unit="s", goal=None)


def page(path: Path, *results: Result) -> str:
    report.write(path, results, stolen={"lease": 0.071}, now=NOW)
    return path.read_text()


def test_only_what_is_between_the_marks_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "figures.md"
    path.write_text(f"# Before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    first = page(path, MISSED)
    assert first.startswith("# Before\n")
    assert first.endswith(f"{report.END}\nafter\n")
    assert "old" not in first
    assert "2026-01-31" in first
    assert "took away 7.1% during `lease`" in first
    assert "| slow | 0.10 | 0.10–0.10 | ≥ 0.7 | **no** | 1 | 10 | MB/s |" in first
    assert "slow" not in page(path, REACHED)


def test_the_plot_has_a_row_for_every_goal(tmp_path: Path) -> None:
    path = tmp_path / "figures.md"
    path.write_text(f"{report.BEGIN}{report.END}")
    assert "only known" in page(path, REACHED, MISSED, KNOWN)
    drawn = ElementTree.parse(path.with_suffix(".svg")).getroot()
    texts = [item.text for item in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "quick & good" in texts
    assert "slow" in texts
    assert "only known" not in texts


def test_a_file_without_marks_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "figures.md"
    path.write_text("mine\n")
    with pytest.raises(BadRequest, match="no place for figures"):
        page(path, REACHED)
    assert path.read_text() == "mine\n"
