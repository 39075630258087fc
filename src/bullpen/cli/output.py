"""Output for users: aligned tables, documents as JSON or YAML."""

from __future__ import annotations

import json
from collections.abc import Sequence

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


def server_table(answer: Document, *, wide: bool, namespaces: bool, header: bool = True) -> str:
    """A Table response of the API server as text."""
    columns = answer.get("columnDefinitions") or []
    shown = [i for i, c in enumerate(columns) if wide or not c.get("priority")]
    headers = [columns[i]["name"] for i in shown]
    rows = []
    for row in answer.get("rows") or []:
        cells = [row["cells"][i] for i in shown]
        if namespaces:
            cells.insert(0, row["object"]["metadata"].get("namespace", ""))
        rows.append(cells)
    if namespaces:
        headers.insert(0, "namespace")
    return table(headers, rows, header=header)
