"""Which contract tests run which line, so that a mutant is tried by the tests that can notice it.

The contract tests run once under ``coverage``, which notes the test function that each line
belongs to. The result is kept beside the virtual environment until the code or a test changes.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import coverage

RC = """\
[run]
dynamic_context = test_function
source = {source}
data_file = {data}
parallel = true
"""
SECONDS_MAX = 3_600
SUITE = "bullpen.testing.provisioner_contract.ProvisionerContract."
"""Its tests are run for every provisioner; for the fake one they are cheap."""


@dataclass(frozen=True)
class Covering:
    """By file below ``src/bullpen`` and line, the test functions that run it."""

    tests: dict[str, dict[int, frozenset[str]]]
    cost: dict[str, int]
    """By test function, how many lines it runs: the order in which they are tried."""

    def of(self, file: str, first: int, last: int) -> list[str]:
        """The tests of a piece of code, cheapest first; of the statement that it is part of."""
        lines = self.tests.get(file, {})
        found = {test for line in range(first, last + 1) for test in lines.get(line, ())}
        if not found:
            above = [line for line in lines if line < first]
            found = set(lines[max(above)]) if above else set()
        return sorted(found, key=lambda test: (self.cost[test], test))


def measured(root: Path) -> Covering:
    """Run the contract tests under ``coverage``, unless that was done for this very code."""
    place = root / ".venv" / "mutants" / _digest(root)
    data = place / "data"
    if not data.exists():
        place.mkdir(parents=True, exist_ok=True)
        (place / "rc").write_text(RC.format(source=root / "src" / "bullpen", data=place / "part"))
        command = [
            sys.executable,
            "-m",
            "coverage",
            "run",
            f"--rcfile={place / 'rc'}",
            "-m",
            "pytest",
        ]
        chosen = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow and not real"]
        halves = _halves(root)
        running = [
            subprocess.Popen(
                [*command, *chosen, "--timeout=600", *half], cwd=root, stdout=sys.stderr
            )
            for half in halves
        ]
        if any(process.wait(SECONDS_MAX) for process in running):
            sys.exit("the contract tests failed, so no mutant can be tried")
        combined = coverage.Coverage(data_file=str(data), config_file=False)
        combined.combine([str(part) for part in place.glob("part.*")])
        combined.save()
    return _read(data)


def _halves(root: Path) -> list[list[str]]:
    """The files of contract tests in two lists of about the same size."""
    files = sorted((root / "tests" / "contract").glob("test_*.py"), key=lambda f: f.stat().st_size)
    return [[str(file) for file in files[start::2]] for start in (0, 1)]


def _read(data: Path) -> Covering:
    stored = coverage.CoverageData(basename=str(data))
    stored.read()
    tests: dict[str, dict[int, frozenset[str]]] = {}
    cost: dict[str, int] = {}
    for file in stored.measured_files():
        by_line = {
            line: frozenset(name for name in found if _is_ours(name))
            for line, found in stored.contexts_by_lineno(file).items()
        }
        tests[file.rpartition("src/bullpen/")[2]] = by_line
        for names in by_line.values():
            for name in names:
                cost[name] = cost.get(name, 0) + 1
    return Covering(tests, cost)


def _is_ours(test: str) -> bool:
    """Whether it is a test: a function of hypothesis that tests call has such a name as well."""
    return test.startswith(("test_", SUITE))


def _digest(root: Path) -> str:
    digest = hashlib.sha256()
    for part in ("src", "tests"):
        for path in sorted((root / part).rglob("*.py")):
            if path.name == "_version.py":
                continue  # written anew for each commit
            digest.update(os.fsencode(path.relative_to(root)) + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def node_id(test: str) -> str:
    """How pytest names a test function that ``coverage`` calls ``module.function``."""
    if test.startswith(SUITE):
        return f"tests/contract/test_provisioner.py::TestFake::{test.removeprefix(SUITE)}"
    module, _, function = test.partition(".")
    return f"tests/contract/{module}.py::{function.replace('.', '::')}"
