"""``bullpen retained``: the disks and logs of former targets that their class retains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bullpen.cli.options import data_option, default_data_directory, output
from bullpen.cli.output import echo_document, table
from bullpen.errors import NotFound
from bullpen.kit import times

if TYPE_CHECKING:
    from bullpen.placements.local.layout import Layout

_COLUMNS = ("name", "removed", "bytes", "path")


@click.group()
def retained() -> None:
    """List or delete what reclaimPolicy Retain kept of former targets of this machine."""


@retained.command("list")
@data_option
@output("table", "json", "yaml")
def list_(data: Path | None, output: str) -> None:
    """Show the directories, the oldest first."""
    from bullpen.placements.local import retention

    rows = [
        {
            "name": kept.name,
            "removed": times.text(kept.at),
            "bytes": kept.bytes,
            "path": str(kept.path),
        }
        for kept in retention.listed(_layout(data))
    ]
    if output != "table":
        echo_document({"retained": rows}, output)
    elif rows:
        click.echo(table(_COLUMNS, [[row[column] for column in _COLUMNS] for row in rows]))
    else:
        click.echo("Nothing is retained.")


@retained.command()
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Delete all of them.")
@data_option
def delete(names: tuple[str, ...], everything: bool, data: Path | None) -> None:
    """Delete the directories NAMES, as 'bullpen retained list' shows them."""
    from bullpen.placements.local import layout

    if bool(names) == everything:
        raise click.UsageError("give the names of directories, or --all")
    kept = {path.name: path for path in _layout(data).kept()}
    unknown = [name for name in names if name not in kept]
    if unknown:
        raise NotFound(
            f"nothing is retained as {', '.join(unknown)}; 'bullpen retained list' shows what is"
        )
    for name in dict.fromkeys(names or sorted(kept)):
        layout.wipe(kept[name])
        click.echo(f"deleted {name}")


def _layout(data: Path | None) -> Layout:
    from bullpen.placements.local.layout import Layout

    return Layout((data or default_data_directory()).resolve())
