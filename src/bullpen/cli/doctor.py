"""``bullpen doctor``: what this machine lacks, and the command that fixes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bullpen.cli.options import Exit, data_option, default_data_directory, output
from bullpen.cli.output import echo_document, table

if TYPE_CHECKING:
    from bullpen.app.diagnosis import Finding


@click.command()
@data_option
@output("table", "json", "yaml")
def doctor(data: Path | None, output: str) -> int:
    """Check whether this machine can run virtual targets, and show how to fix problems.

    Run it as the user that the service runs as. Exits with 11 if something is missing.
    """
    from bullpen.app.diagnosis import examine

    found = examine((data or default_data_directory()).resolve())
    if output == "table":
        _echo(found)
    else:
        echo_document({"findings": [_document(finding) for finding in found]}, output)
    return Exit.LACKING if any(item.status == "missing" for item in found) else Exit.OK


def _document(finding: Finding) -> dict[str, object]:
    return {
        "name": finding.name,
        "about": finding.about,
        "status": finding.status,
        "problem": finding.problem,
        "remedy": finding.remedy,
    }


def _echo(found: tuple[Finding, ...]) -> None:
    click.echo(table(("check", "status", "about"), [[x.name, x.status, x.about] for x in found]))
    for finding in found:
        if finding.problem:
            click.echo(f"\n{finding.name}: {finding.problem}\n  to fix it: {finding.remedy}")
