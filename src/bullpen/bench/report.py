"""The published figures: one file of results, and the pages that are written from it.

``bullpen bench --write`` replaces the results and writes them between two marks into
README.md and docs/benchmarks.md, with a plot beside the latter. The text around the marks is
written by hand and kept. The plot shows each ratio against its goal on one scale: everything
right of the line has reached it.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from xml.sax.saxutils import escape

from bullpen.bench.measure import Result, figure
from bullpen.errors import BadRequest

RESULTS = Path("docs/benchmarks.json")
PAGE, PLOT, README = Path("docs/benchmarks.md"), Path("docs/benchmarks.svg"), Path("README.md")

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
PACKAGES = ("bullpen", "grpcio", "uvloop", "msgspec", "jumpstarter-cli")

ROW, LEFT, WIDTH, MARGIN = 22, 330, 420, 30
DECADES = 2
"""Range of the scale on either side of the goal, in powers of ten."""

FLOOR = "an empty gRPC call and one durable commit"
RELAY = "a plain TLS relay in Python"
SUMMARY = (
    ("warm lease p50", FLOOR),
    ("warm lease p99", FLOOR),
    ("300 leases at once", f"300 times {FLOOR}"),
    ("hand-over p99", "a warm lease, p50"),
    ("cost per lease, 10,000 exporters against 1,000", "the smaller lab"),
    ("cost per lease, 1,000 waiting against 100", "the shorter queue"),
    ("router throughput 4 KiB TLS", RELAY),
    ("router throughput 64 KiB TLS", RELAY),
    ("router throughput 1 MiB TLS", RELAY),
    ("lease on an empty pool", "`jmp run` by hand until registered"),
    ("memory of its own", "25 MiB for an idle exporter"),
)
"""The results in README.md, each with the description of its reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run of all benchmarks."""

    machine: str
    """The machine, the versions and the day."""

    stolen: Mapping[str, float]
    """The share of steal time of the machine, by benchmark."""

    results: tuple[Result, ...]

    @classmethod
    def of(cls, document: Mapping[str, object]) -> Report:
        """The inverse of ``document``."""
        stolen, results = document["stolen"], document["results"]
        assert isinstance(stolen, dict)
        assert isinstance(results, list)
        return cls(
            machine=str(document["machine"]),
            stolen={str(name): float(share) for name, share in stolen.items()},
            results=tuple(Result.of(result) for result in results),
        )

    def document(self) -> dict[str, object]:
        return {
            "machine": self.machine,
            "stolen": {name: round(share, 4) for name, share in self.stolen.items()},
            "results": [result.document() for result in self.results],
        }


def write(root: Path, report: Report) -> None:
    """Replace the results in the checkout at ``root``, and what is written from them."""
    stored = report.document()
    written = pages(root, Report.of(stored))
    (root / RESULTS).write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
    for path, text in written.items():
        (root / path).write_text(text)


def read(root: Path) -> Report:
    """The results in the checkout at ``root``."""
    return Report.of(json.loads((root / RESULTS).read_text()))


def pages(root: Path, report: Report) -> dict[Path, str]:
    """The content of each page with these figures; raises ``BadRequest`` for a page without marks.

    Pages and results are written from the same rounded figures, so that they cannot differ.
    """
    goals = [result for result in report.results if result.goal]
    picture = f"![Ratios to their goals]({PLOT.name})"
    figures = f"{report.machine}\n{_host(report.stolen)}\n\n{picture}\n\n{table(report.results)}"
    return {
        PAGE: _between_marks(root / PAGE, figures),
        README: _between_marks(root / README, summary(report.results)),
        PLOT: plot(goals),
    }


def _between_marks(path: Path, figures: str) -> str:
    text = path.read_text()
    if BEGIN not in text or END not in text:
        raise BadRequest(f"{path} has no place for figures; put {BEGIN} and {END} into it")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return f"{before}{BEGIN}\n{figures}\n{END}{after}"


def summary(results: Sequence[Result]) -> str:
    """The table of README.md; raises ``BadRequest`` if one of its results is missing."""
    named = {result.name: result for result in results}
    rows = []
    for name, against in SUMMARY:
        if name not in named:
            raise BadRequest(f"there is no result {name!r}; run all benchmarks")
        found = named[name]
        goal = f"{found.goal or ''}{'' if found.reached is not False else ', not reached'}"
        rows.append(f"| {name} | {against} | {found.ratio:.2f} | {goal} |")
    return "\n".join(("| what | against | ratio | goal |", "|---" * 4 + "|", *rows))


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
