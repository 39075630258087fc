"""Searches for bytes that make a target fail, guided by the code they reach.

    make fuzz SECONDS_MAX=60                       # every target, one after the other
    make fuzz SECONDS_MAX=600 TARGET=patches CORPUS=DIR

Each target runs in a process of its own: a hang, a crash and too much memory end that and are
found too. With ``--runs`` instead of ``--seconds`` the search is the same each time.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]
SEED = 1
INPUT_SECONDS_MAX = 10
MEMORY_MB_MAX = 1_024
INPUT_BYTES_MAX = 4_096
PROGRESS = re.compile(r"#(\d+)\s+\w+\s+cov: (\d+) .*?corp: (\d+)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How one search went."""

    target: str
    inputs: int
    reached: int
    """Places in the code that were reached."""

    kept: int
    """Inputs that reached something the others did not."""

    problem: str
    """The end of what was said of a failure; empty if there was none."""

    def __str__(self) -> str:
        end = f"failed\n{self.problem}" if self.problem else "nothing found"
        tried = f"{self.inputs:>9} inputs, {self.reached:>5} places in the code"
        return f"{self.target:<16} {tried}, {self.kept:>5} kept: {end}"


def search(target: str, corpus: Path, found: Path, *, limit: str) -> Search:
    """Run one target; an input that fails is left in ``found``."""
    corpus.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "--inside", target, "--"]
    command += [str(corpus), limit, f"-seed={SEED}", f"-max_len={INPUT_BYTES_MAX}"]
    command += [f"-timeout={INPUT_SECONDS_MAX}", f"-rss_limit_mb={MEMORY_MB_MAX}"]
    command += [f"-artifact_prefix={found}/{target}-"]
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, errors="replace", env=env
    )
    progress = PROGRESS.findall(ran.stderr)
    inputs, reached, kept = progress[-1] if progress else (0, 0, 0)
    # A traceback comes on stdout; of a hang or too much memory only libFuzzer itself speaks.
    problem = "" if ran.returncode == 0 and progress else (ran.stdout or ran.stderr)[-4_000:]
    return Search(
        target=target,
        inputs=int(inputs),
        reached=int(reached),
        kept=int(kept),
        problem=problem,
    )


def inside(name: str, arguments: list[str]) -> None:
    """The search itself; does not return."""
    import atheris

    with atheris.instrument_imports(include=["bullpen"], enable_loader_override=False):
        from fuzz_targets import TARGETS
    target = TARGETS[name]
    corpus = Path(arguments[0])
    for number, example in enumerate(target.examples):
        (corpus / f"example-{number}").write_bytes(example)
    if target.words:
        words = corpus.parent / f"{name}.words"
        words.write_text("".join(f"{_quoted(word)}\n" for word in target.words))
        arguments = [*arguments, f"-dict={words}"]
    atheris.Setup([name, *arguments], target.run)
    atheris.Fuzz()


def _quoted(word: str) -> str:
    """As libFuzzer reads it."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in word.encode()) + '"'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", action="append", help="one of them; all if none is named")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--runs", type=int, help="inputs for each target, instead of seconds")
    parser.add_argument("--corpus", type=Path, help="where to keep what was learnt and found")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    said = parser.parse_args()
    sys.path.append(str(TESTS))
    if said.inside:
        inside(said.inside, said.arguments)
    from fuzz_targets import TARGETS

    corpus = said.corpus or Path(tempfile.mkdtemp(prefix="bullpen-fuzz-"))
    limit = f"-runs={said.runs}" if said.runs else f"-max_total_time={said.seconds}"
    failed = False
    for name in said.target or TARGETS:
        found = search(name, corpus / name, corpus, limit=limit)
        print(found, flush=True)
        failed |= bool(found.problem)
    print(f"what was learnt and found is in {corpus}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
