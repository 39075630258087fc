"""``bullpen get``: list or show objects."""

from __future__ import annotations

from typing import Any

import click

from bullpen.api.resources import Resource
from bullpen.cli.connection import TABLE, Api, path_of, resource_named
from bullpen.cli.options import connected, namespaced, output
from bullpen.cli.output import echo_document, server_table

PAGE = 500


@click.command()
@click.argument("resource")
@click.argument("names", nargs=-1)
@connected
@namespaced
@click.option("-A", "--all-namespaces", is_flag=True, help="Across all namespaces.")
@click.option("-l", "--selector", default="", help="Label selector, such as board=rpi4,!broken.")
@click.option("--field-selector", default="", help="Field selector, such as metadata.name=x.")
@click.option("-w", "--watch", is_flag=True, help="Then show changes as they happen.")
@output("table", "wide", "json", "yaml", "name")
def get(
    resource: str,
    names: tuple[str, ...],
    api: Api,
    namespace: str,
    all_namespaces: bool,
    selector: str,
    field_selector: str,
    watch: bool,
    output: str,
) -> None:
    """Show all objects of RESOURCE, or the named ones."""
    kind = resource_named(resource)
    where = None if all_namespaces else namespace
    query = {k: v for k, v in (("labelSelector", selector), ("fieldSelector", field_selector)) if v}
    if output in ("json", "yaml", "name"):
        _documents(api, kind, where, names, query, output)
        return
    _tables(api, kind, where, names, query, wide=output == "wide", watch=watch)


def _documents(
    api: Api,
    kind: Resource,
    namespace: str | None,
    names: tuple[str, ...],
    query: dict[str, str],
    form: str,
) -> None:
    if len(names) == 1:
        found: Any = api.request("GET", path_of(kind, namespace, names[0]))
        items = [found]
    else:
        items = [api.request("GET", path_of(kind, namespace, name)) for name in names]
        items = items or list_all(api, kind, namespace, query)
        found = {"apiVersion": "v1", "kind": "List", "items": items}
    if form == "name":
        suffix = f".{kind.group}" if kind.group else ""
        for item in items:
            click.echo(f"{kind.singular}{suffix}/{item['metadata']['name']}")
        return
    echo_document(found, form)


def _tables(
    api: Api,
    kind: Resource,
    namespace: str | None,
    names: tuple[str, ...],
    query: dict[str, str],
    *,
    wide: bool,
    watch: bool,
) -> None:
    namespaces = namespace is None and kind.namespaced
    paths = [path_of(kind, namespace, name) for name in names] or [path_of(kind, namespace)]
    version = ""
    for index, path in enumerate(paths):
        answer = api.request("GET", path, query=query, accept=TABLE)
        version = answer["metadata"].get("resourceVersion", "")
        if not answer["rows"] and not watch:
            where = "" if namespace is None or not kind.namespaced else f" in namespace {namespace}"
            click.echo(f"No {kind.plural} found{where}.", err=True)
            return
        click.echo(server_table(answer, wide=wide, namespaces=namespaces, header=index == 0))
    if watch:
        follow = {**query, "watch": "true", "resourceVersion": version}
        for event in api.lines(path_of(kind, namespace), query=follow, accept=TABLE):
            if names and event["object"]["rows"][0]["object"]["metadata"]["name"] not in names:
                continue
            click.echo(
                server_table(event["object"], wide=wide, namespaces=namespaces, header=False)
            )


def list_all(
    api: Api, kind: Resource, namespace: str | None, query: dict[str, str] | None = None
) -> list[Any]:
    """Every object, page by page."""
    items: list[Any] = []
    token = ""
    while True:
        page = {**(query or {}), "limit": str(PAGE)}
        if token:
            page["continue"] = token
        answer = api.request("GET", path_of(kind, namespace), query=page)
        items += answer["items"]
        token = answer["metadata"].get("continue", "")
        if not token:
            return items
