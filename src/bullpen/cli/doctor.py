"""``bullpen doctor``: what this machine lacks, and the command that fixes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bullpen.cli.connection import Api, resource_named
from bullpen.cli.get import list_all
from bullpen.cli.options import Exit, data_option, default_data_directory, output
from bullpen.cli.output import echo_document, table
from bullpen.cli.status import provider
from bullpen.errors import LabError

if TYPE_CHECKING:
    from bullpen.app.diagnosis import Finding


@click.command()
@data_option
@output("table", "json", "yaml")
def doctor(data: Path | None, output: str) -> int:
    """Check whether this machine can run virtual targets, and show how to fix problems.

    If the service runs, also whether its providers and hosts answer. Run it as the user that the
    service runs as. Exits with 11 if something is missing.
    """
    from bullpen.app.diagnosis import examine

    place = (data or default_data_directory()).resolve()
    found = (*examine(place), *_providers(place))
    if output == "table":
        _echo(found)
    else:
        echo_document({"findings": [_document(finding) for finding in found]}, output)
    return Exit.LACKING if any(item.status == "missing" for item in found) else Exit.OK


def _providers(data: Path) -> Iterator[Finding]:
    """What the running service knows of its ProviderConfigs; nothing if none runs."""
    from bullpen.app.diagnosis import Finding

    try:
        api = Api.from_data(data)
        configs = list_all(api, resource_named("providerconfigs"), None)
    except LabError:
        return
    for item in map(provider, configs):
        name = f"{item['namespace']}/{item['name']}"
        yield Finding(
            name=f"provider.{name}",
            about=f"the provider or hosts of ProviderConfig {name}",
            problem=item["message"],
            remedy=f"mend it, or change it: kubectl edit providerconfig {item['name']}"
            f" -n {item['namespace']}"
            if item["message"]
            else "",
        )


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
