"""Hooks of pre-commit: local, of programs that are there, and checks of files that can fail."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
HOOKS: dict[str, Any] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
CHECKS: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "check-files"))


def hooks() -> list[dict[str, Any]]:
    return [hook for repo in HOOKS["repos"] for hook in repo["hooks"]]


def test_no_hook_is_fetched_from_elsewhere() -> None:
    assert {repo["repo"] for repo in HOOKS["repos"]} == {"local"}
    assert {hook["language"] for hook in hooks()} == {"system"}


@pytest.mark.parametrize("hook", hooks(), ids=lambda hook: str(hook["id"]))
def test_the_program_of_a_hook_is_there(hook: dict[str, Any]) -> None:
    program = ROOT / hook["entry"].split()[0]
    assert os.access(program, os.X_OK)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        pytest.param(b"", [], id="an empty file"),
        pytest.param(b"a\n", [], id="a good file"),
        pytest.param(b"Heading\n=======\n", [], id="a row of equals signs"),
        pytest.param(b"a", [(1, "the last line has no end")], id="no newline"),
        pytest.param(b"a\n\n", [(2, "an empty line at the end")], id="an empty line"),
        pytest.param(b"a \nb\n", [(1, "blanks at the end of the line")], id="a blank"),
        pytest.param(
            b"<" * 7 + b" HEAD\na\n" + b"=" * 7 + b"\nb\n" + b">" * 7 + b" other\n",
            [(number, "a mark of a merge conflict") for number in (1, 3, 5)],
            id="a merge conflict",
        ),
    ],
)
def test_files_are_checked_for_ends_blanks_and_merge_conflicts(
    content: bytes, found: list[tuple[int, str]]
) -> None:
    assert list(CHECKS["problems"](content)) == found
