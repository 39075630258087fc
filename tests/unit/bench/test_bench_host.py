"""What the host of a virtual machine took away, as Linux tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bullpen.bench import host


def stat(path: Path, line: str) -> Path:
    path.write_text(f"{line}\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    return path


def test_the_share_is_of_the_time_that_passed(tmp_path: Path) -> None:
    before = host.times(stat(tmp_path / "a", "cpu  100 0 50 800 10 0 5 35 7 0"))
    after = host.times(stat(tmp_path / "b", "cpu  150 0 60 820 10 0 5 55 9 0"))
    assert after.share_since(before) == pytest.approx(0.2)
    assert before.share_since(before) == 0.0


def test_this_machine_tells_it() -> None:
    assert host.times().total > 0
