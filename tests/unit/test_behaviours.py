"""A newcomer finds the home of a behaviour in ARCHITECTURE.md, by the words of the question."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "bullpen"
TABLE = (ROOT / "ARCHITECTURE.md").read_text().split("## Where to find a behaviour")[1]
ROWS = [line for line in TABLE.split("\n## ")[0].splitlines() if line.startswith("| ")]

QUESTIONS = {
    "which lease gets which exporter": "schedule",
    "why a lease waits": "explain",
    "satisfies a request": "Matcher",
    "when a lease ends": "due_to_end",
    "how long it may last": "lasts",
    "after a crash in between": "mend_lease",
    "which client may lease which exporter": "approve",
    "how many leases a client": "refusal",
    "when a client may connect": "gate",
    "when an exporter is offline": "lost",
    "which messages an exporter gets": "step",
    "how large a pool is": "plan",
    "why a pool does not grow": "allowance",
    "makes which pool grow": "share",
    "what a pool says about itself": "status",
    "when an instance starts and ends": "next_steps",
    "what a user may do": "AccessIndex",
    "how long a token is valid": "Signer",
    "streams of an ended lease": "fenced",
    "how a watcher is cut off": "Watcher",
}
"""Words of a question, and the name of the function or class that answers it."""


def defined(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_has_one_row_that_names_its_answer(question: str) -> None:
    (row,) = [row for row in ROWS if question in row.split("|")[1]]
    files = [SOURCE / name for name in re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)`", row)]
    assert QUESTIONS[question] in set().union(*map(defined, files)), row
