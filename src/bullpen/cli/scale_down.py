"""``bullpen scale-down``: removes members of a pool by name."""

from __future__ import annotations

import click

from bullpen.api.scale_down import removal_path
from bullpen.cli import manifests
from bullpen.cli.connection import Api, resource_named
from bullpen.cli.options import connected, namespaced


@click.command("scale-down")
@click.argument("target")
@connected
@namespaced
@click.option("--with", "names", required=True, help="Members to remove, separated by commas.")
@click.option("--when-idle", is_flag=True, help="Let leased members leave when their lease ends.")
@click.option("--dry-run", is_flag=True, help="Check and show the result; change nothing.")
def scale_down(
    target: str, api: Api, namespace: str, names: str, when_idle: bool, dry_run: bool
) -> None:
    """Remove members of TARGET and lower its count by as many.

    TARGET is virtualtargetpool/NAME or exporterset/NAME; the count of an ExporterSet is its
    maxReplicas.
    """
    word, slash, name = target.partition("/")
    resource = resource_named(word)
    if not slash or not name or not resource.named_removal:
        raise click.UsageError("write TARGET as virtualtargetpool/NAME or exporterset/NAME")
    given = [each.strip() for each in names.split(",") if each.strip()]
    found = api.request(
        "POST",
        removal_path(resource, namespace, name),
        query={"dryRun": "All"} if dry_run else {},
        body={"targets": given, "whenIdle": when_idle},
    )
    status, label = found["status"], manifests.label(resource, name)
    suffix = " (dry run)" if dry_run else ""
    for member in status["leaving"]:
        click.echo(f"{member} leaves {label}{suffix}")
    for member in status["alreadyLeaving"]:
        click.echo(f"{member} has left {label} or is on its way{suffix}")
    click.echo(f"{label} has a count of {status['replicas']}{suffix}")
