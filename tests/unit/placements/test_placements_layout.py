"""Removal of an instance's directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bullpen.placements.local import layout

ORDINARY_USER = 65534


def test_a_directory_that_its_owner_may_not_enter_is_removed_too(tmp_path: Path) -> None:
    """As containers leave them; for root there is no such directory."""
    tree = tmp_path / "instance"
    closed = tree / "a" / "closed"
    closed.mkdir(parents=True)
    (closed / "file").write_text("")
    (tree / "link").symlink_to(tmp_path)
    closed.chmod(0)
    (tree / "a").chmod(0o500)
    if os.geteuid() == 0:
        _as_ordinary_user(tmp_path)
    else:
        layout.wipe(tree)

    assert not tree.exists()
    assert tmp_path.exists(), "links are not followed"


def _as_ordinary_user(directory: Path) -> None:
    for path in (directory, *directory.rglob("*")):
        os.chown(path, ORDINARY_USER, ORDINARY_USER, follow_symlinks=False)
    code = (
        "import os, sys; from pathlib import Path; from bullpen.placements.local import layout;"
        f" os.chdir({str(directory)!r}); os.setgid({ORDINARY_USER}); os.setuid({ORDINARY_USER});"
        " layout.wipe(Path('instance'))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_absent_directory_is_removed_with_success(tmp_path: Path) -> None:
    layout.wipe(tmp_path / "never")


def test_what_cannot_be_removed_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(NotADirectoryError):
        layout.wipe(tmp_path / "file")
