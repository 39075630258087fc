"""The built pages as files: what is cached, and what is said when they are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bullpen.dashboard.pages import Pages
from bullpen.errors import NotFound


@pytest.fixture
def built(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<html>")
    (tmp_path / "assets" / "main-AB12.js").write_text("1")
    (tmp_path / "icon.svg").write_text("<svg/>")
    return tmp_path


def test_every_page_is_the_index_and_is_not_cached(built: Path) -> None:
    pages = Pages(built)
    for path in ("", "targets", "targets/default/x", "console/default/y"):
        found = pages.get(path)
        assert (found.status, found.body) == (200, b"<html>")
        assert found.headers == ()


def test_a_file_whose_name_changes_with_its_content_is_cached_for_good(built: Path) -> None:
    found = Pages(built).get("assets/main-AB12.js")
    assert found.content_type.startswith("text/javascript")
    assert "immutable" in dict(found.headers)["cache-control"]
    assert Pages(built).get("icon.svg").content_type == "image/svg+xml"


@pytest.mark.parametrize("path", ["assets/old.js", "assets/../../pages.py", "assets/"])
def test_a_file_that_was_not_built_is_not_found(built: Path, path: str) -> None:
    with pytest.raises(NotFound):
        Pages(built).get(path)


def test_without_built_pages_the_page_says_what_to_do(tmp_path: Path) -> None:
    found = Pages(tmp_path / "nothing").get("")
    assert found.status == 503
    assert isinstance(found.body, bytes)
    assert b"make setup" in found.body
