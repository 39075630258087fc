"""``bullpen describe``: one object in readable form, with its events."""

from __future__ import annotations

import click

from bullpen.api import yaml
from bullpen.api.paths import Document
from bullpen.cli.connection import Api, path_of, resource_named
from bullpen.cli.events import HEADERS, row, when
from bullpen.cli.get import list_all
from bullpen.cli.objects import complete, one
from bullpen.cli.options import connected, namespaced, output
from bullpen.cli.output import echo_document, table

_META = (
    ("Name", "name"),
    ("Namespace", "namespace"),
    ("Created", "creationTimestamp"),
    ("Deleting since", "deletionTimestamp"),
)
_HIDDEN = frozenset({"apiVersion", "kind", "metadata"})


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="RESOURCE NAME", shell_complete=complete)
@connected
@namespaced
@output("table", "json", "yaml")
def describe(words: tuple[str, ...], api: Api, namespace: str, output: str) -> None:
    """Show one object and its events: "exporter NAME" or exporter/NAME."""
    kind, name = one(words)
    document = api.request("GET", path_of(kind, namespace, name))
    about = f"involvedObject.uid={document['metadata']['uid']}"
    query = {"fieldSelector": about}
    found = sorted(
        list_all(api, resource_named("events"), namespace if kind.namespaced else None, query),
        key=when,
    )
    if output != "table":
        echo_document({"object": document, "events": found}, output)
        return
    click.echo(_text(document, secret=kind.kind == "Secret"))
    click.echo()
    if found:
        click.echo("Events:")
        click.echo(table(HEADERS, [row(event) for event in found]))
    else:
        click.echo("Events: none")


def _text(document: Document, *, secret: bool) -> str:
    meta = document["metadata"]
    lines = [f"{title + ':':<16}{meta[key]}" for title, key in _META if meta.get(key)]
    for title, key in (("Labels", "labels"), ("Annotations", "annotations")):
        pairs = [f"{k}={v}" for k, v in sorted((meta.get(key) or {}).items())]
        lines.append(f"{title + ':':<16}{pairs[0] if pairs else '<none>'}")
        lines += [f"{'':<16}{pair}" for pair in pairs[1:]]
    rest = {key: value for key, value in document.items() if key not in _HIDDEN}
    if secret:
        # Secret data must not be displayed, so only its size is shown.
        rest["data"] = {k: f"{len(str(v)) * 3 // 4} bytes" for k, v in rest.get("data", {}).items()}
    for key, value in rest.items():
        if isinstance(value, dict | list) and value:
            block = yaml.dump(value).rstrip().replace("\n", "\n  ")
            lines.append(f"{key[:1].upper()}{key[1:]}:\n  {block}")
        elif value not in (None, {}, []):
            lines.append(f"{key[:1].upper() + key[1:] + ':':<16}{value}")
    return "\n".join(lines)
