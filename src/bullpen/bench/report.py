"""Figures for users: a table and a plot, kept in a Markdown file between two marks.

The text around the marks is written by hand and kept. The plot shows each ratio against its
goal on one scale: everything right of the line has reached it.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from xml.sax.saxutils import escape

from bullpen.bench.measure import Result, figure
from bullpen.errors import BadRequest

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
PACKAGES = ("bullpen", "grpcio", "uvloop", "msgspec", "jumpstarter-cli")

ROW, LEFT, WIDTH, MARGIN = 22, 330, 420, 30
DECADES = 2
"""Range of the scale on either side of the goal, in powers of ten."""


def write(
    path: Path, results: Sequence[Result], *, stolen: Mapping[str, float], now: datetime
) -> None:
    """Put the figures between the marks of ``path``; raises ``BadRequest`` without marks.

    ``stolen``: the share of steal time of the machine, by benchmark.
    """
    text = path.read_text()
    if BEGIN not in text or END not in text:
        raise BadRequest(f"{path} has no place for figures; put {BEGIN} and {END} into it")
    plot_path = path.with_suffix(".svg")
    plot_path.write_text(plot([result for result in results if result.goal]))
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    picture = f"![Ratios to their goals]({plot_path.name})"
    figures = f"{machine(now)}\n{_host(stolen)}\n\n{picture}\n\n{table(results)}"
    path.write_text(f"{before}{BEGIN}\n{figures}\n{END}{after}")


def table(results: Sequence[Result]) -> str:
    head = "| what | ratio | spread | goal | reached | ours | reference | unit |"
    rows = [_row(result) for result in results]
    return "\n".join((head, "|---" * 8 + "|", *rows))


def _row(result: Result) -> str:
    reached = {True: "yes", False: "**no**", None: ""}[result.reached]
    spread = f"{result.ratio_min:.2f}–{result.ratio_max:.2f}"
    cells = (
        result.name,
        f"{result.ratio:.2f}",
        spread,
        str(result.goal or ""),
        reached,
        figure(result.ours),
        figure(result.reference),
        result.unit,
    )
    return f"| {' | '.join(cells)} |"


def machine(now: datetime) -> str:
    """The machine, the versions and the time of the measurement."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return (
        f"Measured on {now:%Y-%m-%d} with {os.cpu_count()} cores, {memory:.0f} GiB,"
        f" {platform.system()} {platform.release()}, Python {platform.python_version()}:"
        f" {packages}."
    )


def _host(stolen: Mapping[str, float]) -> str:
    shares = ", ".join(f"{share:.1%} during `{name}`" for name, share in stolen.items())
    return f"The machine's host took away {shares or 'nothing'} of all processor time."


def plot(results: Sequence[Result]) -> str:
    """An SVG with one row per goal."""
    height = MARGIN * 2 + ROW * len(results)
    middle = LEFT + WIDTH / 2
    rows = "".join(_bar(result, MARGIN + ROW * place) for place, result in enumerate(results))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 90}" height="{height}"'
        ' font-family="sans-serif" font-size="12">'
        '<rect width="100%" height="100%" fill="white"/>'
        f'<text x="{middle}" y="18" text-anchor="middle">the goal; right of it is better</text>'
        f"{rows}"
        f'<line x1="{middle}" x2="{middle}" y1="{MARGIN - 6}" y2="{height - MARGIN}"'
        ' stroke="black"/></svg>\n'
    )


def _bar(result: Result, top: int) -> str:
    middle = LEFT + WIDTH / 2
    length = _advantage(result) / DECADES * WIDTH / 2
    colour = "#2a7f3f" if result.reached else "#b3402a"
    return (
        f'<text x="{LEFT - 8}" y="{top + 13}" text-anchor="end">{escape(result.name)}</text>'
        f'<rect x="{middle + min(0.0, length):.1f}" y="{top + 3}" width="{abs(length):.1f}"'
        f' height="{ROW - 8}" fill="{colour}"/>'
        f'<text x="{LEFT + WIDTH + 8}" y="{top + 13}">'
        f"{result.ratio:.2f} ({escape(str(result.goal))})</text>"
    )


def _advantage(result: Result) -> float:
    """By how many powers of ten the goal is passed, or missed if negative."""
    assert result.goal is not None
    better = result.ratio / result.goal.ratio
    decades = math.log10(max(better, 1e-9))
    decades = decades if result.goal.at_least else -decades
    return max(-DECADES, min(DECADES, decades))
