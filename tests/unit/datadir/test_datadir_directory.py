"""Small files are there whole, private from the first byte, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bullpen.datadir.directory import SECRET, write_atomically
from bullpen.errors import Refused


def test_what_a_crash_left_is_removed_by_the_next_attempt(tmp_path: Path) -> None:
    (tmp_path / ".config.new").write_text("half")
    write_atomically(tmp_path / "config", "whole", mode=SECRET)
    assert [path.name for path in tmp_path.iterdir()] == ["config"]
    assert (tmp_path / "config").stat().st_mode & 0o777 == SECRET


def test_a_disk_that_refuses_is_a_sentence_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config"
    write_atomically(path, "old", mode=SECRET)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Refused, match="config cannot be written: No space left on device; check"):
        write_atomically(path, "new", mode=SECRET)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["config"]
    assert path.read_text() == "old"
