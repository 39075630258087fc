"""Commands that change one field of an object: pause and resume pools, leases."""

from __future__ import annotations

from datetime import timedelta

import click

from bullpen.api.paths import Document
from bullpen.cli.connection import MERGE_PATCH, Api, path_of, resource_named
from bullpen.cli.manifests import label
from bullpen.cli.objects import chosen, complete
from bullpen.cli.options import connected, namespaced
from bullpen.errors import Conflict
from bullpen.kit import durations


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
    """Change leases of any client, as an administrator."""


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
