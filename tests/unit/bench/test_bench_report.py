"""The published figures: the README and the page of benchmarks say what was measured."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from bullpen.bench import report
from bullpen.bench.measure import Goal, Result, compare
from bullpen.cli.bench import bench
from bullpen.errors import BadRequest

CHECKOUT = Path(__file__).parents[3]
NOW = datetime(2026, 1, 31, tzinfo=UTC)
REACHED = compare("quick & good", [2.0], [1.0], unit="ms", goal=Goal(3, at_least=False))
MISSED = compare("slow", [1.0], [10.0], unit="MB/s", goal=Goal(0.7))
KNOWN = compare("only known", [1.0], [2.0], unit="s", goal=None)
SUMMARY = tuple(
    compare(name, [2.0], [1.0], unit="ms", goal=Goal(1, at_least=False))
    for name, _ in report.SUMMARY
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with old figures."""
    (tmp_path / "docs").mkdir()
    for path in (report.PAGE, report.README):
        (tmp_path / path).write_text(f"# Before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    return tmp_path


def write(root: Path, *results: Result) -> None:
    machine = report.machine(NOW)
    found = report.Report(machine=machine, stolen={"lease": 0.071}, results=(*SUMMARY, *results))
    report.write(root, found)


def test_the_readme_and_the_page_of_benchmarks_carry_the_figures_of_the_results_file() -> None:
    written = report.pages(CHECKOUT, report.read(CHECKOUT))
    assert {path: (CHECKOUT / path).read_text() for path in written} == written


def test_the_results_file_has_what_the_pages_show(root: Path) -> None:
    write(root, MISSED)
    stored = report.read(root)
    assert stored.results == (*SUMMARY, MISSED)
    assert stored.stolen == {"lease": 0.071}
    assert json.loads((root / report.RESULTS).read_text()) == stored.document()
    assert report.pages(root, stored)[report.README] == (root / report.README).read_text()


def test_only_what_is_between_the_marks_is_replaced(root: Path) -> None:
    write(root, MISSED)
    first = (root / report.PAGE).read_text()
    assert first.startswith("# Before\n")
    assert first.endswith(f"{report.END}\nafter\n")
    assert "old" not in first
    assert "2026-01-31" in first
    assert "took away 7.1% during `lease`" in first
    assert "| slow | 0.10 | 0.10–0.10 | ≥ 0.7 | **no** | 1 | 10 | MB/s |" in first
    write(root, REACHED)
    assert "slow" not in (root / report.PAGE).read_text()


def test_the_readme_says_which_goals_are_not_reached(root: Path) -> None:
    write(root)
    name, against = report.SUMMARY[0]
    readme = (root / report.README).read_text()
    assert f"| {name} | {against} | 2.00 | ≤ 1, not reached |" in readme


def test_a_result_of_the_readme_that_is_missing_is_refused(root: Path) -> None:
    found = report.Report(machine="", stolen={}, results=(REACHED,))
    with pytest.raises(BadRequest, match="run all benchmarks"):
        report.write(root, found)
    assert not (root / report.RESULTS).exists()


def test_the_plot_has_a_row_for_every_goal(root: Path) -> None:
    write(root, REACHED, MISSED, KNOWN)
    assert "only known" in (root / report.PAGE).read_text()
    drawn = ElementTree.parse(root / report.PLOT).getroot()
    texts = [item.text for item in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "quick & good" in texts
    assert "slow" in texts
    assert "only known" not in texts


def test_a_page_without_marks_is_left_alone(root: Path) -> None:
    (root / report.PAGE).write_text("mine\n")
    with pytest.raises(BadRequest, match="no place for figures"):
        write(root, REACHED)
    assert (root / report.PAGE).read_text() == "mine\n"
    assert not (root / report.RESULTS).exists()


def test_figures_of_some_benchmarks_cannot_be_published() -> None:
    result = CliRunner().invoke(bench, ["store", "--write"])
    assert result.exit_code == 2
    assert "name no benchmark" in result.output
