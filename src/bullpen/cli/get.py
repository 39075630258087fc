"""``bullpen get``: list or show objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from bullpen.api import codec
from bullpen.api.kinds.lease import Lease
from bullpen.api.paths import Document
from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES
from bullpen.cli import added_columns, jsonpath
from bullpen.cli.added_columns import Key
from bullpen.cli.connection import TABLE, Api, path_of
from bullpen.cli.manifests import label
from bullpen.cli.objects import Chosen, chosen, complete
from bullpen.cli.options import connected, namespaced
from bullpen.cli.output import AlignedTable, echo_document
from bullpen.errors import Forbidden, NotFound

PAGE = 500
FORMS = ("table", "wide", "json", "yaml", "name")
JSONPATH = "jsonpath="


class Form(click.ParamType[str]):
    """One of the output formats, or ``jsonpath=TEMPLATE``."""

    name = "|".join((*FORMS, f"{JSONPATH}TEMPLATE"))

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in FORMS or value.startswith(JSONPATH):
            return value
        self.fail(f"{value!r} is not one of {self.name.replace('|', ', ')}", param, ctx)


@click.command()
@click.argument(
    "words", nargs=-1, required=True, metavar="RESOURCE [NAME]…", shell_complete=complete
)
@connected
@namespaced
@click.option("-A", "--all-namespaces", is_flag=True, help="Across all namespaces.")
@click.option("-l", "--selector", default="", help="Label selector, such as board=rpi4,!broken.")
@click.option("--field-selector", default="", help="Field selector, such as metadata.name=x.")
@click.option("-L", "--label-columns", multiple=True, help="Show this label as a column.")
@click.option("--show-labels", is_flag=True, help="Show all labels in a column.")
@click.option("-w", "--watch", is_flag=True, help="Then show changes as they happen.")
@click.option("-o", "--output", type=Form(), default="table", show_default=True, help="Format.")
def get(
    words: tuple[str, ...],
    api: Api,
    namespace: str,
    all_namespaces: bool,
    selector: str,
    field_selector: str,
    label_columns: tuple[str, ...],
    show_labels: bool,
    watch: bool,
    output: str,
) -> None:
    """Show objects: exporters, "exporters NAME", exporters,leases or exporter/NAME."""
    where = None if all_namespaces else namespace
    query = {k: v for k, v in (("labelSelector", selector), ("fieldSelector", field_selector)) if v}
    found = chosen(words)
    if output not in ("table", "wide"):
        _documents(api, found, where, query, output)
        return
    if watch and len(found) > 1:
        raise click.UsageError("only one resource can be watched at a time")
    labels = tuple(name for given in label_columns for name in given.split(",") if name)
    for index, part in enumerate(found):
        if index:
            click.echo()
        more = added_columns.added(part.resource, Holders(api, where))
        shape = AlignedTable(
            wide=output == "wide",
            namespaces=where is None and part.resource.namespaced,
            labels=labels,
            show_labels=show_labels,
            prefix=part.resource.singular if len(found) > 1 else "",
            added=more.headers if more else (),
            cells=_now(more.cells) if more else _nothing,
        )
        _table(api, part, where, query, shape, watch=watch)


def _documents(
    api: Api, found: tuple[Chosen, ...], namespace: str | None, query: dict[str, str], form: str
) -> None:
    items: list[tuple[Resource, Any]] = []
    for part in found:
        if part.names:
            paths = [path_of(part.resource, namespace, name) for name in part.names]
            items += [(part.resource, api.request("GET", path)) for path in paths]
        else:
            items += [
                (part.resource, item) for item in list_all(api, part.resource, namespace, query)
            ]
    if form == "name":
        for resource, item in items:
            click.echo(label(resource, item["metadata"]["name"]))
        return
    single = len(items) == 1 and sum(len(part.names) for part in found) == 1
    documents = [item for _, item in items]
    whole = documents[0] if single else {"apiVersion": "v1", "kind": "List", "items": documents}
    if form.startswith(JSONPATH):
        click.echo(jsonpath.rendered(form.removeprefix(JSONPATH), whole), nl=False)
    else:
        echo_document(whole, form)


def _table(
    api: Api,
    part: Chosen,
    namespace: str | None,
    query: dict[str, str],
    shape: AlignedTable,
    *,
    watch: bool,
) -> None:
    kind = part.resource
    query = {**query, "includeObject": "Object"}
    paths = [path_of(kind, namespace, name) for name in part.names] or [path_of(kind, namespace)]
    answers = [api.request("GET", path, query=query, accept=TABLE) for path in paths]
    if not any(answer["rows"] for answer in answers) and not watch:
        where = "" if namespace is None or not kind.namespaced else f" in namespace {namespace}"
        click.echo(f"No {kind.plural} found{where}.", err=True)
        return
    click.echo(shape.beginning(answers))
    if watch:
        version = answers[-1]["metadata"].get("resourceVersion", "")
        follow = {**query, "watch": "true", "resourceVersion": version}
        for event in api.lines(path_of(kind, namespace), query=follow, accept=TABLE):
            rows = event["object"]["rows"]
            if not part.names or rows[0]["object"]["metadata"]["name"] in part.names:
                click.echo(shape.more(event["object"]))


def _now(
    cells: Callable[[Document, datetime], Sequence[str]],
) -> Callable[[Document], Sequence[str]]:
    return lambda document: cells(document, datetime.now(UTC))


def _nothing(document: Document) -> Sequence[str]:
    return ()


class Holders:
    """The leases in which exporters are, read when the first of them is asked for."""

    def __init__(self, api: Api, namespace: str | None) -> None:
        self._api = api
        self._namespace = namespace
        self._known: dict[Key, Lease | None] | None = None

    def __call__(self, key: Key) -> Lease | None:
        try:
            if self._known is None:
                selected = {"labelSelector": Lease.selected}
                found = list_all(self._api, RESOURCES.of(Lease), self._namespace, selected)
                self._known = dict(added_columns.by_name(found))
            if key not in self._known:
                # A watch shows exporters of leases that are newer than the list.
                path = path_of(RESOURCES.of(Lease), *key)
                self._known[key] = codec.decode_or_none(Lease, self._api.request("GET", path))
        except (Forbidden, NotFound):
            return None
        return self._known[key]


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
