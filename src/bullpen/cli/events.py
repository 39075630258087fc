"""``bullpen events``: lists events, oldest first."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from bullpen.api.paths import Document
from bullpen.api.printing import human_duration
from bullpen.cli.connection import Api, path_of, resource_named
from bullpen.cli.get import list_all
from bullpen.cli.objects import pair
from bullpen.cli.options import connected, namespaced, output
from bullpen.cli.output import echo_document, table
from bullpen.kit import times

HEADERS = ("last seen", "type", "reason", "object", "message")


@click.command()
@connected
@namespaced
@click.option("-A", "--all-namespaces", is_flag=True, help="Across all namespaces.")
@click.option("--for", "target", default="", help="Only events of RESOURCE/NAME.")
@click.option("-w", "--watch", is_flag=True, help="Then show new events as they happen.")
@output("table", "json", "yaml")
def events(
    api: Api, namespace: str, all_namespaces: bool, target: str, watch: bool, output: str
) -> None:
    """Show events."""
    kind = resource_named("events")
    where = None if all_namespaces else namespace
    query = {"fieldSelector": _about(target)} if target else {}
    found = sorted(list_all(api, kind, where, query), key=when)
    if output != "table":
        echo_document({"apiVersion": "v1", "kind": "List", "items": found}, output)
        return
    if found or watch:
        click.echo(table(HEADERS, [row(event) for event in found]))
    else:
        click.echo("No events found.", err=True)
    if watch:
        newest = max((int(e["metadata"]["resourceVersion"]) for e in found), default=0)
        follow = {**query, "watch": "true", "resourceVersion": str(newest)}
        for event in api.lines(path_of(kind, where), query=follow, accept="application/json"):
            if event["type"] in ("ADDED", "MODIFIED"):
                click.echo(table(HEADERS, [row(event["object"])], header=False))


def _about(target: str) -> str:
    resource, name = pair(target)
    return f"involvedObject.kind={resource.kind},involvedObject.name={name}"


def when(event: Document) -> str:
    """The newest of the times in an event."""
    times: list[Any] = [event.get(k) for k in ("lastTimestamp", "eventTime", "firstTimestamp")]
    return str(next((t for t in times if t), event["metadata"].get("creationTimestamp", "")))


def row(event: Document) -> tuple[str, ...]:
    about = event.get("involvedObject") or {}
    return (
        _age(when(event)),
        str(event.get("type", "")),
        str(event.get("reason", "")),
        f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}",
        str(event.get("message", "")),
    )


def _age(moment: str) -> str:
    try:
        return human_duration(datetime.now(UTC) - times.parse(moment))
    except ValueError:
        return "<unknown>"
