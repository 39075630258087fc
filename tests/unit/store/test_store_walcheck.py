"""The write-ahead log of a database, as it is after a crash."""

from __future__ import annotations

from pathlib import Path

from bullpen.store import file


def test_without_a_write_ahead_log_nothing_is_wrong_with_it(tmp_path: Path) -> None:
    assert file.problem(tmp_path / "store.db-wal", valid_frames=0) == ""


def test_a_frame_that_was_cut_off_ends_no_commit() -> None:
    assert not file._commits(b"cut off", [1, 2])
