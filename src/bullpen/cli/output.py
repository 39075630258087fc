"""Output for users: aligned tables, documents as JSON or YAML."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

import click

from bullpen.api.paths import Document

GAP = "   "


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], *, header: bool = True) -> str:
    """Columns padded to their widest cell, as kubectl prints them."""
    lines = [[_cell(value) for value in row] for row in rows]
    if header:
        lines.insert(0, [name.upper() for name in headers])
    widths = [max((len(line[i]) for line in lines), default=0) for i in range(len(headers))]
    return "\n".join(
        GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cell(value: object) -> str:
    if value is None:
        return "<none>"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def echo_document(document: object, form: str) -> None:
    """Print as ``json`` or ``yaml``."""
    if form == "json":
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        from bullpen.api import yaml

        click.echo(yaml.dump(document), nl=False)


class AlignedTable:
    """Table responses of the API server as text; later rows keep the columns of the first."""

    def __init__(
        self,
        *,
        wide: bool = False,
        namespaces: bool = False,
        labels: tuple[str, ...] = (),
        show_labels: bool = False,
        prefix: str = "",
        added: tuple[str, ...] = (),
        cells: Callable[[Document], Sequence[str]] = lambda document: (),
    ) -> None:
        """``prefix``: the resource, where several are shown; names are then RESOURCE/NAME.

        ``added`` are further headers, whose ``cells`` are made from the whole objects of the rows.
        """
        self._wide = wide
        self._namespaces = namespaces
        self._labels = labels
        self._show_labels = show_labels
        self._prefix = prefix
        self._added = added
        self._cells = cells
        self._shown: list[int] = []
        self._widths: list[int] = []

    def beginning(self, answers: Sequence[Document]) -> str:
        """Headers and rows."""
        columns = answers[0].get("columnDefinitions") or []
        self._shown = [i for i, c in enumerate(columns) if self._wide or not c.get("priority")]
        headers = [str(columns[i]["name"]).upper() for i in self._shown]
        if self._namespaces:
            headers.insert(0, "NAMESPACE")
        headers += self._added
        headers += [name.rpartition("/")[2].upper() for name in self._labels]
        headers += ["LABELS"] if self._show_labels else []
        lines = [headers, *(line for answer in answers for line in self._lines(answer))]
        self._widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(map(self._aligned, lines))

    def more(self, answer: Document) -> str:
        """Rows that changed, below the rows before."""
        return "\n".join(map(self._aligned, self._lines(answer)))

    def _lines(self, answer: Document) -> Iterator[list[str]]:
        for row in answer.get("rows") or []:
            meta = row["object"]["metadata"]
            cells = [_cell(row["cells"][i]) for i in self._shown]
            if self._prefix:
                cells[0] = f"{self._prefix}/{cells[0]}"
            if self._namespaces:
                cells.insert(0, meta.get("namespace", ""))
            cells += self._cells(row["object"])
            labels = meta.get("labels") or {}
            cells += [labels.get(name, "<none>") for name in self._labels]
            if self._show_labels:
                pairs = [f"{key}={value}" for key, value in sorted(labels.items())]
                cells.append(",".join(pairs) or "<none>")
            yield cells

    def _aligned(self, cells: list[str]) -> str:
        return GAP.join(
            cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True)
        ).rstrip()
