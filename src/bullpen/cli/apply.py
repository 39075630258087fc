"""``bullpen apply``: create or update objects from manifests."""

from __future__ import annotations

import click

from bullpen.api.paths import Document
from bullpen.api.resource import Resource
from bullpen.cli import manifests
from bullpen.cli.connection import Api, path_of
from bullpen.cli.options import connected, namespaced, output
from bullpen.cli.output import echo_document
from bullpen.errors import NotFound

FIELD_MANAGER = "bullpen"


@click.command()
@click.option(
    "-f",
    "--filename",
    "paths",
    multiple=True,
    required=True,
    help="File, directory, or - for standard input. May be repeated.",
)
@connected
@namespaced
@click.option("--dry-run", is_flag=True, help="Validate only; change nothing.")
@click.option("--force-conflicts", is_flag=True, help="Take over fields that other managers own.")
@output("table", "json", "yaml", "name")
def apply(
    paths: tuple[str, ...],
    api: Api,
    namespace: str,
    dry_run: bool,
    force_conflicts: bool,
    output: str,
) -> None:
    """Create or change objects to match manifests (server-side apply)."""
    results = []
    for resource, document in manifests.read(paths):
        where = manifests.namespace_of(resource, document, namespace)
        outcome, answer = _apply_one(
            api, resource, document, where, dry_run=dry_run, force=force_conflicts
        )
        results.append(answer)
        name = manifests.label(resource, document["metadata"]["name"])
        if output == "table":
            click.echo(f"{name} {outcome}{' (dry run)' if dry_run else ''}")
        elif output == "name":
            click.echo(name)
    if output in ("json", "yaml"):
        found = results[0] if len(results) == 1 else _list(results)
        echo_document(found, output)


def _list(items: list[Document]) -> Document:
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _apply_one(
    api: Api,
    resource: Resource,
    document: Document,
    namespace: str | None,
    *,
    dry_run: bool,
    force: bool,
) -> tuple[str, Document]:
    path = path_of(resource, namespace, document["metadata"]["name"])
    try:
        before = api.request("GET", path)["metadata"]["resourceVersion"]
    except NotFound:
        before = ""
    query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
    if force:
        query["force"] = "true"
    if dry_run:
        query["dryRun"] = "All"
    answer = api.request(
        "PATCH", path, query=query, body=document, content_type="application/apply-patch+yaml"
    )
    if not before:
        return "created", answer
    same = answer["metadata"]["resourceVersion"] == before and not dry_run
    return ("unchanged" if same else "configured"), answer
