"""``bullpen claim``: claim several targets at once, wait for them, show and release them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import click

from bullpen import errors
from bullpen.api.deviceclaim import DeviceClaim
from bullpen.api.paths import Document
from bullpen.api.resources import RESOURCES
from bullpen.cli import manifests
from bullpen.cli.connection import MERGE_PATCH, Api, path_of
from bullpen.cli.options import connected, namespaced, output
from bullpen.cli.output import echo_document, table
from bullpen.cli.shell import Period
from bullpen.kit import durations

CLAIMS = RESOURCES.of(DeviceClaim)

WATCH_SECONDS = 5
"""How long one watch lasts; the next begins with the newest state."""

REFUSALS = frozenset({"Unsatisfiable", "NoExporter", "ClientNotFound", "QuotaExceeded"})
"""Reasons for which waiting is of no use as things are."""


@click.group()
def claim() -> None:
    """Claim several targets at once: all of them or none."""


@claim.command()
@click.argument("name", required=False)
@click.option("-f", "--filename", "paths", multiple=True, help="File with DeviceClaims, or -.")
@click.option(
    "--request",
    "requests",
    multiple=True,
    metavar="NAME=CLASS[,count=N]",
    help="Targets of a DeviceClass; may be repeated.",
)
@click.option("--match", multiple=True, help="Attribute that all targets have in common.")
@click.option("--client", default="default", show_default=True, help="The client that gets them.")
@click.option("--duration", type=Period(), default="30m", show_default=True)
@connected
@namespaced
def create(
    name: str | None,
    paths: tuple[str, ...],
    requests: tuple[str, ...],
    match: tuple[str, ...],
    client: str,
    duration: timedelta,
    api: Api,
    namespace: str,
) -> None:
    """Create the claims in files, or the claim NAME for what --request says."""
    if bool(paths) == bool(requests) or bool(requests) != bool(name):
        raise click.UsageError("give either -f FILE, or NAME and --request NAME=CLASS")
    if paths:
        claims = _from_files(paths, namespace)
    else:
        spec: Document = {
            "clientRef": {"name": client},
            "duration": durations.text(duration),
            "requests": [_request(text) for text in requests],
            "constraints": [{"matchAttribute": attribute} for attribute in match],
        }
        meta = {"name": name, "namespace": namespace}
        head = {"apiVersion": CLAIMS.api_version, "kind": CLAIMS.kind}
        claims = [{**head, "metadata": meta, "spec": spec}]
    for document in claims:
        where = document["metadata"]["namespace"]
        made = api.request("POST", path_of(CLAIMS, where), body=document)
        click.echo(f"{manifests.label(CLAIMS, made['metadata']['name'])} created")


def _from_files(paths: tuple[str, ...], namespace: str) -> list[Document]:
    found = []
    for resource, document in manifests.read(paths):
        if resource.kind != CLAIMS.kind:
            text = f"{resource.kind} is no DeviceClaim; use 'bullpen apply -f' for other kinds"
            raise click.UsageError(text)
        where = manifests.namespace_of(resource, document, namespace)
        found.append({**document, "metadata": {**document["metadata"], "namespace": where}})
    return found


def _request(text: str) -> Document:
    """``dut=board,count=2`` as a request."""
    first, *more = text.split(",")
    name, _, device_class = first.partition("=")
    exactly: Document = {"deviceClassName": device_class}
    for part in more:
        key, _, value = part.partition("=")
        if key != "count" or not value.isdecimal():
            raise click.UsageError(f"--request {text}: {part!r} is not count=N")
        exactly["count"] = int(value)
    if not name or not device_class:
        raise click.UsageError(f"--request {text}: write NAME=CLASS, such as dut=board")
    return {"name": name, "exactly": exactly}


@claim.command()
@click.argument("name")
@click.option(
    "--timeout",
    type=Period(),
    default="2h",
    show_default=True,
    help="How long to wait; then exit with 12.",
)
@connected
@namespaced
def wait(name: str, timeout: timedelta, api: Api, namespace: str) -> None:
    """Wait until a claim has all its targets, and list their leases.

    Exits with 12 after the time-out, and with 13 if the claim cannot be served or has ended.
    """
    told = ""
    for found in _states(api, namespace, name, seconds=timeout.total_seconds()):
        status, reason, message = _allocated(found)
        if (found.get("status") or {}).get("ended") or reason in REFUSALS:
            raise errors.LeaseRefused(f"claim {name} is not served: {reason}: {message}")
        if status == "True":
            _show(found)
            return
        if message and message != told:
            click.echo(f"{reason}: {message}", err=True)
            told = message
    raise errors.TimedOut(f"claim {name} still waits after {durations.text(timeout)}: {told}")


def _states(api: Api, namespace: str, name: str, *, seconds: float) -> Iterator[Document]:
    """The claim now and after each change, until the time is over."""
    end = time.monotonic() + seconds
    while True:
        found = api.request("GET", path_of(CLAIMS, namespace, name))
        yield found
        left = end - time.monotonic()
        if left <= 0:
            return
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": found["metadata"]["resourceVersion"],
            "timeoutSeconds": str(max(1, min(WATCH_SECONDS, int(left)))),
        }
        for event in api.lines(path_of(CLAIMS, namespace), query=query, accept="application/json"):
            if event["type"] in ("ADDED", "MODIFIED"):
                yield event["object"]


@claim.command()
@click.argument("name")
@connected
@namespaced
@output("table", "json", "yaml")
def get(name: str, api: Api, namespace: str, output: str) -> None:
    """Show the targets of a claim, or what it waits for."""
    found = api.request("GET", path_of(CLAIMS, namespace, name))
    if output != "table":
        echo_document(found, output)
        return
    status, reason, message = _allocated(found)
    if status != "True":
        click.echo(f"claim {name}: {reason or 'not decided yet'}{': ' if message else ''}{message}")
    _show(found)


@claim.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@connected
@namespaced
def release(names: tuple[str, ...], api: Api, namespace: str) -> None:
    """End claims with all their leases."""
    for name in names:
        path = path_of(CLAIMS, namespace, name)
        api.request("PATCH", path, body={"spec": {"release": True}}, content_type=MERGE_PATCH)
        click.echo(f"claim {name} released")


def _allocated(found: Document) -> tuple[str, str, str]:
    """Status, reason and message of the condition Allocated."""
    said = (found.get("status") or {}).get("conditions") or ()
    for condition in said:
        if condition["type"] == "Allocated":
            return condition["status"], condition["reason"], condition.get("message", "")
    return "", "", ""


def _show(found: Document) -> None:
    members = (found.get("status") or {}).get("members") or ()
    rows = [
        [m["request"], m.get("alternative", ""), m["device"], m.get("leaseRef", {}).get("name", "")]
        for m in members
    ]
    if rows:
        click.echo(table(["REQUEST", "ALTERNATIVE", "EXPORTER", "LEASE"], rows))
