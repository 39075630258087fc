"""``bullpen delete``: remove objects by name, selector or file."""

from __future__ import annotations

import click

from bullpen.cli import manifests
from bullpen.cli.connection import Api, path_of
from bullpen.cli.get import list_all
from bullpen.cli.objects import chosen, complete
from bullpen.cli.options import connected, namespaced
from bullpen.errors import NotFound


@click.command()
@click.argument("words", nargs=-1, metavar="[RESOURCE [NAME]…]", shell_complete=complete)
@connected
@namespaced
@click.option("-f", "--filename", "paths", multiple=True, help="Delete the objects in a file.")
@click.option("-l", "--selector", default="", help="Delete the objects that match.")
@click.option("--all", "everything", is_flag=True, help="Delete all of RESOURCE in the namespace.")
@click.option("--ignore-not-found", is_flag=True, help="Ignore objects that do not exist.")
@click.option(
    "--cascade",
    type=click.Choice(["background", "foreground", "orphan"]),
    default="background",
    show_default=True,
    help="What happens to owned objects.",
)
def delete(
    words: tuple[str, ...],
    api: Api,
    namespace: str,
    paths: tuple[str, ...],
    selector: str,
    everything: bool,
    ignore_not_found: bool,
    cascade: str,
) -> None:
    """Delete objects: "exporter NAME", exporter/NAME, -l SELECTOR, or those in manifests."""
    targets: list[tuple[str, str]] = []
    if paths:
        for kind, document in manifests.read(paths):
            where = manifests.namespace_of(kind, document, namespace)
            name = document["metadata"]["name"]
            targets.append((path_of(kind, where, name), manifests.label(kind, name)))
    elif words:
        for part in chosen(words):
            kind, names = part.resource, part.names
            if not names and (selector or everything):
                query = {"labelSelector": selector} if selector else None
                found = list_all(api, kind, namespace, query)
                names = tuple(item["metadata"]["name"] for item in found)
            elif not names:
                raise click.UsageError(
                    "specify which objects to delete: NAMES, -l SELECTOR or --all"
                )
            targets += [(path_of(kind, namespace, n), manifests.label(kind, n)) for n in names]
    else:
        raise click.UsageError("specify what to delete: RESOURCE NAME…, or -f FILE")
    body = {"propagationPolicy": cascade.capitalize()}
    for path, label in targets:
        try:
            api.request("DELETE", path, body=body)
        except NotFound:
            if not ignore_not_found:
                raise
        else:
            click.echo(f"{label} deleted")
