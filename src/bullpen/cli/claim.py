"""``bullpen claim``: claim several targets at once, wait for them, use and release them.

Claims are made with the token of a Jumpstarter client, over Bullpen's own gRPC service.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bullpen.api.paths import Document
from bullpen.cli.options import client_options, output
from bullpen.cli.output import echo_document, table
from bullpen.cli.shell import (
    Period,
    ProgressLine,
    child,
    environment_of,
    interruptible,
    until_ended,
)
from bullpen.client.config import ClientConfig
from bullpen.errors import NotFound
from bullpen.kit import durations

if TYPE_CHECKING:
    from bullpen.client.claims import Claims, Target
    from bullpen.client.connection import Connection

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def claim() -> None:
    """Claim several targets at once: all of them or none."""


def asked(function: F) -> F:
    """The options that say what is claimed."""
    for decorate in (
        click.option("-f", "--filename", "path", default="", help="File with a DeviceClaim, or -."),
        click.option(
            "--request",
            "requests",
            multiple=True,
            metavar="NAME=CLASS[,count=N]",
            help="Targets of a DeviceClass; may be repeated.",
        ),
        click.option("--match", multiple=True, help="Attribute that all targets have in common."),
        click.option("--duration", type=Period(), default="30m", show_default=True),
    ):
        function = decorate(function)
    return function


def waiting(function: F) -> F:
    return click.option(
        "--timeout",
        type=Period(),
        default="2h",
        show_default=True,
        help="How long to wait for the targets; then exit with 12.",
    )(function)


def _answer(config: ClientConfig, ask: Callable[[Claims, Connection], Awaitable[T]]) -> T:
    async def answered() -> T:
        from bullpen.client.claims import Claims
        from bullpen.client.connection import Connection

        async with Connection(config) as connection:
            return await ask(Claims(connection), connection)

    return asyncio.run(answered())


@claim.command()
@click.argument("name", required=False)
@asked
@client_options
def create(name: str | None, client: ClientConfig, **what: Any) -> None:
    """Create the claim NAME for what --request says, or the claim in a file."""
    name, spec = _spec(name or "", client, **what)
    made = _answer(client, lambda claims, _: claims.create(spec, name=name))
    click.echo(f"claim {_short(made.name)} created")


def _spec(
    name: str,
    client: ClientConfig,
    *,
    path: str,
    requests: tuple[str, ...],
    match: tuple[str, ...],
    duration: timedelta,
) -> tuple[str, Any]:
    """The name and the spec of the claim that the options describe."""
    from bullpen.protocol.claim_documents import spec_message

    if bool(path) == bool(requests):
        raise click.UsageError("give either -f FILE, or --request NAME=CLASS")
    if path:
        document = _from_file(path, client)
        written = str(document["metadata"].get("name") or "")
        return name or written, spec_message(document["spec"])
    spec: Document = {
        "duration": durations.text(duration),
        "requests": [_request(text) for text in requests],
        "constraints": [{"matchAttribute": attribute} for attribute in match],
    }
    return name, spec_message(spec)


def _from_file(path: str, client: ClientConfig) -> Document:
    from bullpen.api.kinds.deviceclaim import DeviceClaim
    from bullpen.cli import manifests

    found = manifests.read((path,))
    if [resource.kind for resource, _ in found] != [DeviceClaim.kind]:
        raise click.UsageError(f"{path} must have one DeviceClaim and nothing else")
    document: Document = found[0][1]
    owner = (document["spec"].get("clientRef") or {}).get("name", client.name)
    if owner != client.name:
        raise click.UsageError(
            f"{path} is a claim of client {owner}, and the client config is that of {client.name};"
            " use the config of that client, or leave out clientRef"
        )
    return document


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
@waiting
@client_options
def wait(name: str, timeout: timedelta, client: ClientConfig) -> None:
    """Wait until a claim has all its targets, and list their leases.

    Exits with 12 after the time-out, and with 13 if the claim cannot be served or has ended.
    """

    async def waited(claims: Claims, _: Connection) -> Any:
        progress = ProgressLine()
        progress.begin()
        try:
            return await claims.wait(name, timeout=timeout, progress=progress.tell)
        finally:
            progress.end()

    _show(_answer(client, waited))


@claim.command()
@click.argument("name")
@output("table", "json", "yaml")
@client_options
def get(name: str, client: ClientConfig, output: str) -> None:
    """Show the targets of a claim, or what it waits for."""
    found = _answer(client, lambda claims, _: claims.get(name))
    if output != "table":
        echo_document(_document(found), output)
        return
    status, text = _allocated(found)
    if status != "True":
        click.echo(f"claim {name}: {text}")
    _show(found)


@claim.command("list")
@click.option("--all", "ended", is_flag=True, help="Also claims that have ended.")
@output("table", "json", "yaml", "name")
@client_options
def list_(ended: bool, client: ClientConfig, output: str) -> None:
    """List the claims of the namespace."""
    found = _answer(client, lambda claims, _: claims.list(ended=ended))
    if output == "name":
        for each in found:
            click.echo(_short(each.name))
    elif output == "table":
        rows = [
            [_short(c.name), _short(c.client), str(len(c.status.members)), _state(c)] for c in found
        ]
        click.echo(table(["NAME", "CLIENT", "TARGETS", "STATE"], rows))
    else:
        echo_document({"claims": [_document(each) for each in found]}, output)


@claim.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@client_options
def release(names: tuple[str, ...], client: ClientConfig) -> None:
    """End claims with all their leases."""

    async def released(claims: Claims, _: Connection) -> None:
        for name in names:
            await claims.release(name)
            click.echo(f"claim {name} released")

    _answer(client, released)


@claim.command()
@click.argument("name")
@click.argument("duration", type=Period())
@client_options
def extend(name: str, duration: timedelta, client: ClientConfig) -> None:
    """Let a claim last DURATION from its begin on, with all its leases."""
    _answer(client, lambda claims, _: claims.update(name, duration=duration))
    click.echo(f"claim {name} lasts {durations.text(duration)}")


@claim.command()
@click.argument("name")
@click.argument("to", metavar="CLIENT")
@client_options
def transfer(name: str, to: str, client: ClientConfig) -> None:
    """Give a claim with all its leases to another client."""
    _answer(client, lambda claims, _: claims.update(name, client=to))
    click.echo(f"claim {name} transferred to {to}")


@claim.command()
@click.argument("target", metavar="NAME/REQUEST[/N]")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@waiting
@client_options
def shell(target: str, command: tuple[str, ...], timeout: timedelta, client: ClientConfig) -> int:
    """Use one target of a claim in a shell, or for COMMAND after --. The claim stays."""
    name, _, request = target.partition("/")
    line = command or (os.environ.get("SHELL") or "/bin/sh",)

    async def used(claims: Claims, connection: Connection) -> int:
        found = await claims.wait(name, timeout=timeout, progress=ProgressLine().tell)
        return await _used(claims, connection, found, line, chosen=_chosen(found, request))

    return _answer(client, used)


@claim.command()
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--name", default="", help="Name of the claim [default: chosen by the service].")
@asked
@waiting
@client_options
def run(
    command: tuple[str, ...], name: str, timeout: timedelta, client: ClientConfig, **what: Any
) -> int:
    """Claim targets, run COMMAND (after --) with them, release them, exit with its code.

    For each request NAME, the environment has JUMPSTARTER_HOST_NAME, JMP_LEASE_NAME and
    JMP_EXPORTER_NAME; further targets of it have a number at the end, such as _2. For a device
    without an exporter, such as a licence, it has JMP_DEVICE_NAME. A claim may have only these.
    """
    name, spec = _spec(name, client, **what)

    async def used(claims: Claims, connection: Connection) -> int:
        progress = ProgressLine()
        progress.begin()
        held = claims.held(spec, name=name, timeout=timeout, progress=progress.tell)
        async with interruptible(held) as found:
            progress.end()
            return await _used(claims, connection, found, command)

    return _answer(client, used)


async def _used(
    claims: Claims,
    connection: Connection,
    found: Any,
    line: tuple[str, ...],
    *,
    chosen: Target | None = None,
) -> int:
    """Run a program with the targets of a claim until it ends, or the claim does."""
    from bullpen.client.claims import connected, devices_of, targets_of
    from bullpen.client.lease import HeldLease

    targets = (chosen,) if chosen is not None else targets_of(found)
    environment: dict[str, str] = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="bullpen-") as directory:
        async with connected(connection, targets, Path(directory)) as connections:
            if targets:
                first = HeldLease(name=targets[0].lease, exporter=targets[0].exporter)
                environment = environment_of(connection.config, first, connections[0][0])
            endings = _endings(target.request for target in targets)
            for target, (socket, _), ending in zip(targets, connections, endings, strict=True):
                environment |= {
                    f"JUMPSTARTER_HOST_{ending}": str(socket),
                    f"JMP_LEASE_{ending}": target.lease,
                    f"JMP_EXPORTER_{ending}": target.exporter,
                }
            devices = devices_of(found)
            endings = _endings(request for request, _ in devices)
            for (_, device), ending in zip(devices, endings, strict=True):
                environment[f"JMP_DEVICE_{ending}"] = device
            ended = _ended(claims, _short(found.name))
            return await until_ended(child(line, environment), ended, what="claim")


def _endings(requests: Iterable[str]) -> Iterator[str]:
    """What tells the variables of each device apart: its request, from the second on a number."""
    seen: dict[str, int] = {}
    for request in requests:
        number = seen[request] = seen.get(request, 0) + 1
        ending = request.upper().replace("-", "_")
        yield ending + (f"_{number}" if number > 1 else "")


async def _ended(claims: Claims, name: str) -> str:
    """Why the claim has ended, once it has."""
    said = ""
    async for newest in claims.watch(name):
        said = _allocated(newest)[1]
    return said


def _chosen(found: Any, request: str) -> Target:
    """The target that ``REQUEST`` or ``REQUEST/N`` names."""
    from bullpen.client.claims import devices_of, targets_of

    if not targets_of(found):
        devices = ", ".join(device for _, device in devices_of(found))
        claim = _short(found.name)
        raise NotFound(
            f"claim {claim} has nothing to connect to, only devices without an exporter: {devices};"
            f" they are kept for it until bullpen claim release {claim}"
        )
    name, _, number = request.partition("/")
    fitting = [target for target in targets_of(found) if name in ("", target.request)]
    if not name and len(fitting) > 1:
        known = ", ".join(sorted({target.request for target in fitting}))
        raise click.UsageError(f"say which target: {_short(found.name)}/REQUEST; it has: {known}")
    position = int(number) if number.isdecimal() else 1
    if not 1 <= position <= len(fitting):
        raise NotFound(f"claim {_short(found.name)} has no target {request}")
    return fitting[position - 1]


def _short(path: str) -> str:
    return path.rpartition("/")[2]


def _document(found: Any) -> Document:
    from google.protobuf.json_format import MessageToDict

    return dict(MessageToDict(found))


def _allocated(found: Any) -> tuple[str, str]:
    """Status of the condition Allocated, and what it says."""
    for condition in found.status.conditions:
        if condition.type == "Allocated":
            return condition.status, f"{condition.reason}: {condition.message}"
    return "", "not decided yet"


def _state(found: Any) -> str:
    if found.status.ended:
        return "Ended"
    status, text = _allocated(found)
    return "Allocated" if status == "True" else text.partition(":")[0]


def _show(found: Any) -> None:
    rows = [[m.request, m.alternative, m.device, _short(m.lease)] for m in found.status.members]
    if rows:
        click.echo(table(["REQUEST", "ALTERNATIVE", "EXPORTER", "LEASE"], rows))
