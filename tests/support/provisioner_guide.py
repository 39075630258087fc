"""What docs/how-to/write-a-provisioner.md tells its reader to write and to run."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-provisioner.md"

_FILE = re.compile(r"`(turtlelab/[^`]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

SERVICE = "bullpen up --data ./lab\n"


def files() -> dict[str, str]:
    """The files of the package by path, as they are on the page."""
    return dict(_FILE.findall(PAGE.read_text()))


def commands() -> list[str]:
    """The blocks of commands, in order."""
    return [text for language, text in _BLOCK.findall(PAGE.read_text()) if not language]


def write_package(directory: Path) -> Path:
    """The package, without running any command."""
    for path, text in files().items():
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    package = directory / "turtlelab"
    (package / "src" / "turtlelab" / "__init__.py").touch()
    return package
