"""``bullpen crds`` and ``bullpen manifests``: what to install in a cluster.

``bullpen crds``: the CustomResourceDefinitions, to install in a cluster.

``bullpen manifests``: the manifests to install in a cluster, without Helm.
"""

from __future__ import annotations

from pathlib import Path

import click

from bullpen.cli.options import output
from bullpen.cli.output import echo_document


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


@click.command()
@click.option("-n", "--namespace", default="bullpen", show_default=True, help="Where to install.")
@click.option(
    "-f",
    "--values",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="YAML file with values, as for the Helm chart. May be repeated; later files win.",
)
@output("yaml", "json", "name")
def manifests(namespace: str, values: tuple[Path, ...], output: str) -> None:
    """Print all manifests that a cluster needs to run the service."""
    from bullpen.api import yaml
    from bullpen.core.targets.exporter_config import merged
    from bullpen.errors import BadRequest
    from bullpen.install.parts import manifests as installation

    chosen: dict[str, object] = {}
    for path in values:
        found = yaml.load(path.read_bytes()) or {}
        if not isinstance(found, dict):
            raise BadRequest(f"{path} is not a YAML mapping of values")
        chosen = merged(chosen, found)
    documents = list(installation(chosen, namespace=namespace))
    if output == "json":
        echo_document({"apiVersion": "v1", "kind": "List", "items": documents}, "json")
    elif output == "name":
        for document in documents:
            click.echo(f"{document['kind'].lower()}/{document['metadata']['name']}")
    else:
        click.echo("---\n".join(map(yaml.dump, documents)), nl=False)
