"""What is retained of former instances is listed and bounded."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from bullpen.cli.main import cli
from bullpen.placements.local import retention
from bullpen.placements.local.layout import Layout
from bullpen.placements.local.retention import Retained, RetentionLimits

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def kept(days: float, size: int = 1) -> Retained:
    return Retained(path=Path(f"lab.a-{days}"), at=NOON - days * DAY, bytes=size)


@pytest.mark.parametrize(
    ("found", "limits", "gone"),
    [
        pytest.param([3, 2, 1], RetentionLimits(), [], id="within every limit"),
        pytest.param([31, 30, 1], RetentionLimits(), [31], id="what is too old goes"),
        pytest.param([3, 2, 1], RetentionLimits(keep=2), [3], id="the oldest beyond the number"),
        pytest.param([3, 2, 1], RetentionLimits(bytes_max=2), [3], id="the oldest beyond the size"),
        pytest.param([3, 2, 1], RetentionLimits(bytes_max=0), [3, 2], id="the newest stays"),
        pytest.param([3, 2, 1], RetentionLimits(keep=0), [3, 2, 1], id="nothing is kept"),
        pytest.param([], RetentionLimits(keep=0, bytes_max=0), [], id="there is nothing"),
    ],
)
def test_the_oldest_go_first(
    found: list[float], limits: RetentionLimits, gone: list[float]
) -> None:
    excess = retention.excess([kept(days) for days in found], limits, now=NOON)
    assert excess == tuple(kept(days) for days in gone)


def directories(data: Path, count: int) -> list[Path]:
    """As many retained directories, a day apart, the newest last."""
    places = Layout(data)
    found = [places.retained_as(("lab", "a"), NOON - n * DAY) for n in reversed(range(count))]
    for path in found:
        (path / "disks").mkdir(parents=True)
        (path / "disks" / "root.overlay").write_bytes(b"x" * 100_000)
    return found


def test_a_sweep_deletes_whole_directories_and_leaves_the_others(tmp_path: Path) -> None:
    oldest, *rest = directories(tmp_path, 3)
    stray = Layout(tmp_path).retained / "renamed by hand"
    stray.mkdir()
    gone = retention.sweep(Layout(tmp_path), RetentionLimits(keep=3), now=NOON)
    assert [found.path for found in gone] == [oldest]
    assert sorted(Layout(tmp_path).kept()) == sorted([*rest, stray])


def test_sizes_are_those_on_the_disk(tmp_path: Path) -> None:
    (path,) = directories(tmp_path, 1)
    with (path / "disks" / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    (found,) = retention.listed(Layout(tmp_path))
    assert 100_000 <= found.bytes < 1 << 30
    assert found.at == NOON


def run(data: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["retained", *words, "--data", str(data)])
    return done.exit_code, done.output


def test_the_command_lists_and_deletes(tmp_path: Path) -> None:
    first, second, third = directories(tmp_path, 3)
    listed = json.loads(run(tmp_path, "list", "-o", "json")[1])["retained"]
    assert [row["path"] for row in listed] == [str(first), str(second), str(third)]
    assert run(tmp_path, "delete", second.name) == (0, f"deleted {second.name}\n")
    assert Layout(tmp_path).kept() == (first, third)
    assert run(tmp_path, "delete", "--all")[0] == 0
    assert run(tmp_path, "list") == (0, "Nothing is retained.\n")


@pytest.mark.parametrize("name", ["other", "..", "../instances", ""])
def test_only_what_is_listed_can_be_deleted(tmp_path: Path, name: str) -> None:
    (path,) = directories(tmp_path, 1)
    Layout(tmp_path).instances.mkdir()
    code, _ = run(tmp_path, "delete", path.name, name)
    assert code != 0
    assert path.exists()
    assert Layout(tmp_path).instances.exists()


def test_either_names_or_all(tmp_path: Path) -> None:
    assert run(tmp_path, "delete")[0] == 2
    assert run(tmp_path, "delete", "a", "--all")[0] == 2
