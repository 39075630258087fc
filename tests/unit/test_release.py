"""What `make release` decides before it builds anything."""

from __future__ import annotations

import runpy
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RELEASE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "release"))
Stopped: type[Exception] = RELEASE["Stopped"]

CHANGELOG = """\
# Changelog

## Unreleased

### Added
- The next thing.

## 1.2.0 (2026-03-04)

### Added
- A thing.

## 1.1.0
"""


def test_a_release_of_a_dirty_tree_is_refused_even_when_dry() -> None:
    with pytest.raises(Stopped, match="the tree has changes"):
        RELEASE["chosen_tag"](" M README.md\n", "v1.2.0\n", dry=True)


def test_a_release_needs_a_tag_unless_it_is_dry() -> None:
    with pytest.raises(Stopped, match=r"no tag such as v1\.2\.0"):
        RELEASE["chosen_tag"]("", "nightly\n", dry=False)
    assert RELEASE["chosen_tag"]("", "", dry=True) == ""
    assert RELEASE["chosen_tag"]("", "nightly\nv1.2.0\n", dry=False) == "v1.2.0"


def test_a_release_without_an_image_builder_says_how_to_get_one() -> None:
    with pytest.raises(Stopped, match="apt-get install buildah"):
        RELEASE["image_builder"](lambda name: None)
    assert RELEASE["image_builder"]({"podman": "/usr/bin/podman"}.get) == "/usr/bin/podman"


def test_release_notes_are_the_section_of_the_changelog() -> None:
    assert RELEASE["notes_of"](CHANGELOG, "1.2.0") == "### Added\n- A thing.\n"
    for version in ("1.1.0", "1.2"):
        with pytest.raises(Stopped, match="has nothing under"):
            RELEASE["notes_of"](CHANGELOG, version)


def test_the_changelog_of_this_repository_has_notes_for_the_next_release() -> None:
    assert RELEASE["notes_of"]((ROOT / "CHANGELOG.md").read_text(), "Unreleased")


def test_a_packed_chart_is_the_same_bytes_every_time(tmp_path: Path) -> None:
    chart = tmp_path / "bullpen"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("name: bullpen\n")
    (chart / "templates" / "a.yaml").write_text("a: 1\n")
    first = RELEASE["packed"](chart, 1_700_000_000)
    (chart / "Chart.yaml").touch()
    assert RELEASE["packed"](chart, 1_700_000_000) == first
    with tarfile.open(fileobj=BytesIO(first)) as archive:
        assert archive.getnames() == ["bullpen/Chart.yaml", "bullpen/templates/a.yaml"]
