"""A short search for bytes that make something fail; `make fuzz` is the long one."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import fuzz_run
import pytest
from fuzz_targets import TARGETS, Target

RUNS = 3_000
needs_fuzzer = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="there is no fuzzer for this machine"
)

FOUND = [
    pytest.param("tokens", b"a.b.c\xff", id="half a character in a token was an internal error"),
    pytest.param("patches", b'\r[{"op":{}}]', id="an op that is an object was an internal error"),
]


@pytest.mark.parametrize(("target", "data"), FOUND)
def test_what_was_found_once_is_answered(target: str, data: bytes) -> None:
    TARGETS[target].run(data)


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: str(target.name))
def test_the_examples_are_fine(target: Target) -> None:
    for example in (*target.examples, b"", b"\x00", b"\xff" * 40):
        target.run(example)


@needs_fuzzer
@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_a_short_search_finds_nothing(name: str, tmp_path: Path) -> None:
    found = fuzz_run.search(name, tmp_path / "corpus", tmp_path, limit=f"-runs={RUNS}")
    assert not found.problem, found
    assert found.inputs >= RUNS
    assert found.kept > len(TARGETS[name].examples), "something new was reached"


BUGGY = """
from bullpen.kit import names
from types import SimpleNamespace

def run(data):
    # Only who sees that each letter gets further finds the word.
    if data[:1] == b"f":
        names.dns_label_problem("a")
        if data[1:2] == b"o":
            names.dns_label_problem("A")
            if data[2:3] == b"u":
                names.label_key_problem("a/b/c")
                assert data[3:4] != b"l"

TARGETS = {"buggy": SimpleNamespace(run=run, examples=(b"xxxx",), words=())}
"""


@needs_fuzzer
@pytest.mark.slow
def test_a_search_finds_what_is_wrong(tmp_path: Path) -> None:
    shutil.copy(fuzz_run.__file__, tmp_path)
    (tmp_path / "fuzz_targets.py").write_text(BUGGY)
    command = [sys.executable, str(tmp_path / "fuzz_run.py"), "--runs", "200000"]
    ran = subprocess.run(
        [*command, "--corpus", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1, ran.stdout
    assert "AssertionError" in ran.stdout
    assert [path.read_bytes()[:4] for path in tmp_path.glob("buggy-crash-*")] == [b"foul"]
