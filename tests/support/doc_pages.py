"""The commands of a page of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    """The blocks that a reader runs, in order: those of no language.

    A block of a language is a part of a file, or an example that the page does not run.
    """
    text = (ROOT / "docs" / page).read_text()
    return [block for language, block in FENCED.findall(text) if not language]


def files(page: str) -> dict[str, str]:
    """The files that a reader writes: blocks with a language and a file's name."""
    text = (ROOT / "docs" / page).read_text()
    named = ((info.split(), block) for info, block in FENCED.findall(text))
    return {words[1]: block for words, block in named if len(words) == 2 and "." in words[1]}
