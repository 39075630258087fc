"""``bullpen dashboard``: an address that signs in once at the dashboard."""

from __future__ import annotations

from pathlib import Path

import click

from bullpen.cli.connection import Api
from bullpen.cli.options import data_option, default_data_directory

LINKS = "/dashboard/api/links"


@click.command()
@data_option
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="Sign in as the user of this kubeconfig, rather than as the administrator.",
)
def dashboard(data: Path | None, kubeconfig: Path | None) -> None:
    """Print an address that signs in at the dashboard, once and within 15 minutes."""
    api = (
        Api.from_kubeconfig(kubeconfig)
        if kubeconfig is not None
        else Api.from_data(data or default_data_directory())
    )
    path = api.request("POST", LINKS)["path"]
    click.echo(f"{api.server}{path}")
