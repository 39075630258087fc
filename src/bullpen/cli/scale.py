"""``bullpen scale``: sets the ceiling of a pool."""

from __future__ import annotations

import click

from bullpen.cli import manifests
from bullpen.cli.connection import MERGE_PATCH, Api, path_of
from bullpen.cli.objects import complete, pair
from bullpen.cli.options import connected, namespaced


@click.command()
@click.argument("target", shell_complete=complete)
@connected
@namespaced
@click.option("--replicas", type=click.IntRange(0), required=True, help="New ceiling.")
def scale(target: str, api: Api, namespace: str, replicas: int) -> None:
    """Set the maximum number of members of TARGET (RESOURCE/NAME, such as exporterset/rpi4)."""
    resource, name = pair(target)
    if resource.scale is None:
        raise click.UsageError(f"{resource.plural} cannot be scaled; exportersets can")
    api.request(
        "PATCH",
        path_of(resource, namespace, name, "scale"),
        body={"spec": {"replicas": replicas}},
        content_type=MERGE_PATCH,
    )
    click.echo(f"{manifests.label(resource, name)} scaled")
