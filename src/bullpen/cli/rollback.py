"""``bullpen rollback``: gives a pool of lasting targets an earlier template."""

from __future__ import annotations

import click

from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool
from bullpen.cli import manifests
from bullpen.cli.connection import Api, path_of, resource_named
from bullpen.cli.options import connected, namespaced


@click.command()
@click.argument("target")
@connected
@namespaced
@click.option("--to", "wanted", default="", help="Hash of the template; the one before if absent.")
def rollback(target: str, api: Api, namespace: str, wanted: str) -> None:
    """Give TARGET (virtualtargetpool/NAME) an earlier template, from status.revisions."""
    word, slash, name = target.partition("/")
    resource = resource_named(word)
    if not slash or not name or resource.kind != VirtualTargetPool.kind:
        raise click.UsageError("write TARGET as virtualtargetpool/NAME")
    path = path_of(resource, namespace, name)
    found = api.request("GET", path)
    revisions = {each["hash"]: each for each in found.get("status", {}).get("revisions", ())}
    label = manifests.label(resource, name)
    current = found.get("status", {}).get("desiredTemplateHash", "")
    earlier = [known for known in revisions if known != current]
    chosen = wanted or (earlier[-1] if earlier else "")
    if chosen not in revisions:
        known = ", ".join(earlier) or "none"
        raise click.UsageError(f"{label} has no such template on record; earlier ones: {known}")
    version = found["metadata"]["resourceVersion"]
    api.request(
        "PATCH",
        path,
        # With the version, the write is refused if the pool was changed in between.
        body=[
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "replace", "path": "/spec/template", "value": revisions[chosen]["template"]},
        ],
        content_type="application/json-patch+json",
    )
    click.echo(f"{label} rolled back to template {chosen}")
