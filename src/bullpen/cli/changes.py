"""Commands that change one field of an object: pause and resume pools; and leases."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from bullpen.api.paths import Document
from bullpen.cli.connection import MERGE_PATCH, Api, path_of, resource_named
from bullpen.cli.manifests import label
from bullpen.cli.objects import chosen, complete
from bullpen.cli.options import connected, namespaced, output
from bullpen.cli.output import echo_document
from bullpen.cli.shell import ProgressLine, checked, interruptible, leasing
from bullpen.errors import Conflict
from bullpen.kit import durations

if TYPE_CHECKING:
    from bullpen.client.config import ClientConfig
    from bullpen.client.lease import HeldLease


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="POOL…", shell_complete=complete)
@connected
@namespaced
def pause(words: tuple[str, ...], api: Api, namespace: str) -> None:
    """Stop a pool (exporterset/NAME): it starts nothing and removes what no lease holds."""
    _set_paused(words, api, namespace, paused=True)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="POOL…", shell_complete=complete)
@connected
@namespaced
def resume(words: tuple[str, ...], api: Api, namespace: str) -> None:
    """Let a paused pool (exporterset/NAME) do its work again."""
    _set_paused(words, api, namespace, paused=False)


def _set_paused(words: tuple[str, ...], api: Api, namespace: str, *, paused: bool) -> None:
    for part in chosen(words):
        if part.resource.scale is None:
            raise click.UsageError(f"{part.resource.plural} cannot be paused; exportersets can")
        if not part.names:
            raise click.UsageError("name the pool: exporterset/NAME")
        for name in part.names:
            path = path_of(part.resource, namespace, name)
            body = {"spec": {"paused": paused}}
            api.request("PATCH", path, body=body, content_type=MERGE_PATCH)
            click.echo(f"{label(part.resource, name)} {'paused' if paused else 'resumed'}")


@click.group()
def lease() -> None:
    """Make a lease and keep it; change leases of any client, as an administrator."""


@lease.command()
@leasing
@output("table", "json", "yaml", "name")
def create(client: ClientConfig, output: str, **wanted: Any) -> None:
    """Lease a target and keep it: wait until it is assigned, and print the lease.

    Ends as bullpen shell does if no target is free in time; the request is withdrawn then.
    """
    held = asyncio.run(_created(client, checked(wanted)))
    found = {"lease": held.name, "exporter": held.exporter, "labels": dict(held.labels)}
    if output == "name":
        click.echo(held.name)
    elif output == "table":
        click.echo(f"lease {held.name} has exporter {held.exporter}")
        click.echo(f"use it: bullpen shell --lease {held.name}")
        click.echo(f"end it: bullpen lease release {held.name}")
    else:
        echo_document(found, output)


async def _created(config: ClientConfig, wanted: dict[str, Any]) -> HeldLease:
    from bullpen.client.connection import Connection
    from bullpen.client.lease import Leases, Wanted

    progress, what = ProgressLine(), Wanted(**wanted)
    async with Connection(config) as connection:
        leases = Leases(connection)
        progress.begin()
        try:
            async with interruptible(leases.withdrawn_on_error(what)) as made:
                return await leases.wait(made, timeout=what.timeout, progress=progress.tell)
        finally:
            progress.end()


@lease.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@connected
@namespaced
def release(names: tuple[str, ...], api: Api, namespace: str) -> None:
    """End leases now. Their exporters become free."""
    for name in names:
        _change(api, namespace, name, {"release": True})
        click.echo(f"lease {name} released")


@lease.command()
@click.argument("name")
@click.option("--by", "extra", required=True, help="How much longer, such as 30m.")
@connected
@namespaced
def extend(name: str, extra: str, api: Api, namespace: str) -> None:
    """Make a lease longer, up to the maximum of its access policy."""
    spec = _open_lease(api, namespace, name)["spec"]
    if not spec.get("duration"):
        raise click.UsageError(
            f"lease {name} has a fixed end ({spec.get('endTime')}); edit endTime"
        )
    try:
        longer = durations.parse(extra)
    except ValueError as error:
        raise click.UsageError(f"--by {extra}: {error}") from None
    if longer <= timedelta(0):
        raise click.UsageError("--by must be positive")
    new = durations.text(durations.parse(spec["duration"]) + longer)
    _change(api, namespace, name, {"duration": new})
    click.echo(f"lease {name} has a duration of {new}")


@lease.command()
@click.argument("name")
@click.option("--to", "client", required=True, help="The client that gets the lease.")
@connected
@namespaced
def transfer(name: str, client: str, api: Api, namespace: str) -> None:
    """Give a lease to another client; connections of the old one are cut."""
    api.request("GET", path_of(resource_named("clients"), namespace, client))
    _change(api, namespace, name, {"clientRef": {"name": client}})
    click.echo(f"lease {name} transferred to {client}")


def _open_lease(api: Api, namespace: str, name: str) -> Document:
    found: Document = api.request("GET", path_of(resource_named("leases"), namespace, name))
    if (found.get("status") or {}).get("ended"):
        raise Conflict(f"lease {name} has ended")
    return found


def _change(api: Api, namespace: str, name: str, spec: Document) -> None:
    _open_lease(api, namespace, name)
    path = path_of(resource_named("leases"), namespace, name)
    api.request("PATCH", path, body={"spec": spec}, content_type=MERGE_PATCH)
