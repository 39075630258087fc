"""``bullpen restore``: lists the backups of a lab, or restores one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bullpen.api.paths import Document
from bullpen.cli.options import data_option, default_data_directory, output
from bullpen.cli.output import echo_document, table
from bullpen.kit import times

if TYPE_CHECKING:
    from bullpen.datadir.backups import Finding, Restored

_COLUMNS = ("name", "made", "bytes", "revision", "objects", "sound")


@click.command()
@data_option
@click.option("--from", "chosen", default="", help="Backup to restore [default: newest sound one].")
@click.option("--list", "listing", is_flag=True, help="Show the backups; change nothing.")
@output("table", "json", "yaml")
def restore(data: Path | None, chosen: str, listing: bool, output: str) -> None:
    """Replace the database of a stopped service with a backup.

    Changes after the backup was made are lost. The replaced database is kept.
    """
    from bullpen.app.local_audit import record_restore
    from bullpen.datadir.backups import restore as run
    from bullpen.datadir.backups import survey
    from bullpen.datadir.directory import Layout
    from bullpen.kit.clock import SystemClock
    from bullpen.kit.ids import RandomIds

    root = (data or default_data_directory()).resolve()
    if listing:
        _echo_list([_row(finding) for finding in survey(Layout(root))], root, output)
        return
    clock = SystemClock()
    done = run(root, chosen, now=clock.now())
    record_restore(Layout(root), done.backup.name, clock=clock, ids=RandomIds())
    if output == "table":
        _echo(done, root)
    else:
        echo_document(_document(done), output)


def _row(finding: Finding) -> Document:
    content = finding.content
    return {
        "name": finding.backup.path.name,
        "made": times.text(finding.backup.made_at),
        "bytes": finding.size,
        "revision": content.revision if content else None,
        "objects": content.keys if content else None,
        "sound": content is not None,
        "problem": finding.problem,
    }


def _echo_list(rows: list[Document], root: Path, form: str) -> None:
    if form != "table":
        echo_document({"backups": rows}, form)
    elif rows:
        click.echo(table(_COLUMNS, [[row[column] for column in _COLUMNS] for row in rows]))
    else:
        click.echo(f"There are no backups in {root / 'backups'}.")


def _document(done: Restored) -> Document:
    return {
        "restored": str(done.backup),
        "backupRevision": done.backup_revision,
        "revision": done.content.revision,
        "objects": done.content.keys,
        "setAside": str(done.set_aside) if done.set_aside else None,
    }


def _echo(done: Restored, root: Path) -> None:
    click.echo(f"Restored {done.backup}: {done.content.keys} objects.")
    click.echo(
        f"Changes after revision {done.backup_revision}, when the backup was made, are lost."
        f" The lab continues at revision {done.content.revision},"
        " so that no revision is used twice."
    )
    if done.set_aside:
        click.echo(f"The replaced database is kept in {done.set_aside}.")
    click.echo(f"Start the service: bullpen up --data {root}")
