"""Every relative link in the Markdown of the repository leads to a file, and to a heading in it."""

from __future__ import annotations

import re
import runpy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT = {"build", "dist", "site", "node_modules"}

FENCE = re.compile(r"^\s*(```+|~~~+).*?^\s*\1\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
INLINE = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^\s*\[[^\]]+\]:\s+<?(\S+?)>?\s*$", re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)? *$", re.MULTILINE)
ANCHOR = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")


def pages() -> list[Path]:
    return sorted(
        path
        for path in ROOT.rglob("*.md")
        if not any(
            part.startswith(".") or part in BUILT for part in path.relative_to(ROOT).parts[:-1]
        )
    )


def links(text: str) -> Iterator[str]:
    """Targets of links, without those in code and those that name a scheme."""
    prose = CODE.sub("", FENCE.sub("", text))
    for target in (*INLINE.findall(prose), *DEFINITION.findall(prose)):
        if not re.match(r"[a-z][a-z0-9+.-]*:", target):
            yield target


def anchors(text: str) -> set[str]:
    """What GitHub calls the headings of a page, and anchors that the page names itself."""
    seen: Counter[str] = Counter()
    found = set(ANCHOR.findall(text))
    for heading in HEADING.findall(FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def broken(page: Path, root: Path) -> list[str]:
    """Links of a page that lead nowhere, or out of the repository."""
    found = []
    for target in links(page.read_text()):
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page.resolve()
        inside = place.is_relative_to(root.resolve())
        missing = not inside or not place.exists()
        if missing or (
            anchor and (place.suffix != ".md" or anchor not in anchors(place.read_text()))
        ):
            found.append(target)
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    assert broken(page, ROOT) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text(
        "# What `is` there?\n\n```\n# no heading\n```\n# Twice\n# Twice\n"
    )
    page = tmp_path / "page.md"
    good = ("other.md", "other.md#what-is-there", "other.md#twice-1", "#here", "https://x.example/")
    bad = ("gone.md", "other.md#gone", "other.md#no-heading", "#gone", "../..", "other.md#twice-2")
    text = "# Here\n`[code](ignored.md)`\n```\n[code](ignored.md)\n```\n"
    page.write_text(text + "\n".join(f"[a link]({target})" for target in (*good, *bad)))
    assert broken(page, tmp_path) == list(bad)
    page.write_text("[a][b]\n\n[b]: gone.md\n")
    assert broken(page, tmp_path) == ["gone.md"]


def test_the_site_has_every_page_of_the_documentation() -> None:
    site = runpy.run_path(str(ROOT / "scripts" / "docs"))
    listed = {page for section in site["SECTIONS"] for page in site["pages"](section)}
    listed |= {*site["PAGES"], *site["OTHERS"]}
    wanted = {
        str(page.relative_to(ROOT)) for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    }
    assert listed == wanted


def test_directories_are_linked_to_by_their_index_in_the_site() -> None:
    site = runpy.run_path(str(ROOT / "scripts" / "docs"))
    assert site["for_mkdocs"]("[a](docs/how-to/), [b](../adr/), [c](x.md)") == (
        "[a](docs/how-to/index.md), [b](../adr/index.md), [c](x.md)"
    )
    assert site["for_mkdocs"]("  ```yaml values\n") == "  ```yaml\n"
