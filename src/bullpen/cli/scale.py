"""``bullpen scale``: sets the ceiling of a pool."""

from __future__ import annotations

import click

from bullpen.cli import manifests
from bullpen.cli.connection import Api, path_of, resource_named
from bullpen.cli.options import connected, namespaced


@click.command()
@click.argument("target")
@connected
@namespaced
@click.option("--replicas", type=click.IntRange(0), required=True, help="New ceiling.")
def scale(target: str, api: Api, namespace: str, replicas: int) -> None:
    """Set the maximum number of members of TARGET (RESOURCE/NAME, such as exporterset/rpi4)."""
    word, slash, name = target.partition("/")
    if not slash or not name:
        raise click.UsageError("write TARGET as RESOURCE/NAME, such as exporterset/rpi4")
    resource = resource_named(word)
    if resource.scale is None:
        raise click.UsageError(f"{resource.plural} cannot be scaled; exportersets can")
    api.request(
        "PATCH",
        path_of(resource, namespace, name, "scale"),
        body={"spec": {"replicas": replicas}},
        content_type="application/merge-patch+json",
    )
    click.echo(f"{manifests.label(resource, name)} scaled")
