"""``bullpen crds``: the CustomResourceDefinitions, to install in a cluster."""

from __future__ import annotations

import click

from bullpen.cli.options import output
from bullpen.cli.rendering import echo_document


@click.command()
@output("yaml", "json", "name")
def crds(output: str) -> None:
    """Print the CustomResourceDefinitions of every kind."""
    from bullpen.api import yaml
    from bullpen.api.crds import crds as definitions

    found = definitions()
    if output == "json":
        echo_document({"apiVersion": "v1", "kind": "List", "items": list(found)}, "json")
    elif output == "name":
        for definition in found:
            click.echo(definition["metadata"]["name"])
    else:
        click.echo("---\n".join(yaml.dump(definition) for definition in found), nl=False)
