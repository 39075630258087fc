"""``bullpen client`` and ``bullpen exporter``: create one, with a config for its program.

Their tokens are rotated, and exporters are taken out of service, here too.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from bullpen.api.paths import Document
from bullpen.cli.connection import MERGE_PATCH, Api, path_of, resource_named
from bullpen.cli.options import connected, namespaced, output, wait_for
from bullpen.cli.output import echo_document
from bullpen.errors import Conflict, NotFound

F = TypeVar("F", bound=Callable[..., Any])

CREDENTIAL_SECONDS_MAX = 10.0
TOKEN_LINE = re.compile(r"^token: .*$", re.MULTILINE)
CA_CONFIG_MAP, CA_KEY = "jumpstarter-service-ca-cert", "ca.crt"


@click.group()
def client() -> None:
    """Clients: who may lease."""


@click.group()
def exporter() -> None:
    """Exporters: what can be leased."""


def _create_options(function: F) -> F:
    """The common options of creating a client and creating an exporter."""
    for decorate in (
        output("table", "json", "yaml", "name"),
        click.option(
            "--out", type=click.Path(path_type=Path), help="Where to write the config for jmp."
        ),
        click.option("--force", is_flag=True, help="Overwrite an existing file."),
        click.option("--username", default="", help="External identity, such as oidc:alice."),
        click.option("-l", "--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label."),
        namespaced,
        connected,
        click.argument("name"),
    ):
        function = decorate(function)
    return function


@client.command("create")
@_create_options
def create_client(**options: Any) -> None:
    """Create a client and write the config that ``jmp`` needs."""
    _create("clients", **options)


@exporter.command("create")
@_create_options
def create_exporter(**options: Any) -> None:
    """Create an exporter and write the config that ``jmp run`` needs."""
    _create("exporters", **options)


def _config_options(function: F) -> F:
    for decorate in (
        click.option("--force", is_flag=True, help="Overwrite a file with another content."),
        click.option("--out", type=click.Path(path_type=Path), help="Where to write it."),
        namespaced,
        connected,
        click.argument("name"),
    ):
        function = decorate(function)
    return function


@client.command("config")
@_config_options
def write_client_config(**options: Any) -> None:
    """Write the config that ``jmp`` needs, for a client that exists.

    An existing config of the client gets its current token and is otherwise kept.
    """
    _write_config("clients", **options)


@exporter.command("config")
@_config_options
def write_exporter_config(**options: Any) -> None:
    """Write the config that ``jmp run`` needs, for an exporter that exists.

    An existing config of the exporter gets its current token and keeps its drivers.
    """
    _write_config("exporters", **options)


def _write_config(
    plural: str, *, name: str, api: Api, namespace: str, out: Path | None, force: bool
) -> None:
    resource = resource_named(plural)
    path = out or Path(f"{name}-{resource.singular}.yaml")
    found = _with_credential(api, path_of(resource, namespace, name))
    config = _config(api, found)
    kept = _with_token_of(path.read_text(), config) if path.exists() else None
    if kept is None:
        _refuse_overwriting(path, force=force)
    _write(path, kept if kept is not None else config)
    if kept is not None:
        click.echo(f"{path} has the current token; the rest of it is unchanged")
    else:
        click.echo(f"config written to {path}; it contains a secret token, keep it private")


def _with_token_of(old: str, new: str) -> str | None:
    """The old config with the token of the new one; None if more than the token differs.

    What an exporter exports is not compared: it is the user's own.
    """
    import yaml

    try:
        before, after = yaml.safe_load(old), yaml.safe_load(new)
    except yaml.YAMLError:
        return None
    if not isinstance(before, dict) or _identity(before) != _identity(after):
        return None
    replaced = TOKEN_LINE.sub(lambda _: f"token: {after['token']}", old, count=1)
    return replaced if yaml.safe_load(replaced) == {**before, "token": after["token"]} else None


def _identity(config: Document) -> tuple[Any, ...]:
    """Whose config it is, and for which service."""
    return tuple(config.get(key) for key in ("apiVersion", "kind", "metadata", "endpoint", "tls"))


@client.command("rotate")
@click.argument("name")
@connected
@namespaced
def rotate_client(name: str, api: Api, namespace: str) -> None:
    """Replace a client's token. The old one is invalid at once; write a new config."""
    _rotate("clients", name, api, namespace)


@exporter.command("rotate")
@click.argument("name")
@connected
@namespaced
def rotate_exporter(name: str, api: Api, namespace: str) -> None:
    """Replace an exporter's token. The old one is invalid at once; write a new config."""
    _rotate("exporters", name, api, namespace)


def _rotate(plural: str, name: str, api: Api, namespace: str) -> None:
    resource = resource_named(plural)
    path = path_of(resource, namespace, name)
    secret = _with_credential(api, path)["status"]["credential"]["name"]
    where = path_of(resource_named("secrets"), namespace, secret)
    old = api.request("GET", where)["metadata"]["uid"]
    api.request("DELETE", where)

    def renewed() -> bool:
        try:
            return bool(api.request("GET", where)["metadata"]["uid"] != old)
        except NotFound:
            return False

    wait_for(renewed, seconds=CREDENTIAL_SECONDS_MAX, what="the new token")
    click.echo(f"{resource.singular} {name} has a new token; write it into its config with:")
    click.echo(f"  bullpen {resource.singular} config {name} --out FILE")


@exporter.command()
@click.argument("name")
@connected
@namespaced
def disable(name: str, api: Api, namespace: str) -> None:
    """Take an exporter out of service. A running lease keeps it until it ends."""
    _enable(api, namespace, name, enabled=False)


@exporter.command()
@click.argument("name")
@connected
@namespaced
def enable(name: str, api: Api, namespace: str) -> None:
    """Put an exporter back into service."""
    _enable(api, namespace, name, enabled=True)


def _enable(api: Api, namespace: str, name: str, *, enabled: bool) -> None:
    path = path_of(resource_named("exporters"), namespace, name)
    api.request("PATCH", path, body={"spec": {"enabled": enabled}}, content_type=MERGE_PATCH)
    click.echo(f"exporter {name} {'enabled' if enabled else 'disabled'}")


def _create(
    plural: str,
    *,
    api: Api,
    namespace: str,
    name: str,
    labels: tuple[str, ...],
    username: str,
    out: Path | None,
    force: bool,
    output: str,
) -> None:
    """Create the object, wait for its token, write the config, print its path."""
    resource = resource_named(plural)
    document: Document = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name, "labels": _labels(labels)},
        "spec": {"username": username} if username else {},
    }
    path = out or Path(f"{name}-{resource.singular}.yaml")
    _refuse_overwriting(path, force=force)
    api.request("POST", path_of(resource, namespace), body=document)
    found = _with_credential(api, path_of(resource, namespace, name))
    _write(path, _config(api, found))
    if output in ("json", "yaml"):
        echo_document(found, output)
    elif output == "name":
        click.echo(f"{resource.singular}.{resource.group}/{name}")
    else:
        click.echo(f"{resource.singular} {name} created in namespace {namespace}")
        click.echo(f"config written to {path}; it contains a secret token, keep it private")
        click.echo(_hint(resource.singular, path))


def _hint(singular: str, path: Path) -> str:
    if singular == "client":
        return f"try: jmp get exporters --client-config {path}"
    return f"next: add drivers under 'export:', then run: jmp run --exporter-config {path}"


def _labels(pairs: tuple[str, ...]) -> dict[str, str]:
    labels = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"write the label {pair!r} as KEY=VALUE")
        labels[key] = value
    return labels


def _with_credential(api: Api, path: str) -> Document:
    found: Document = {}

    def ready() -> bool:
        found.clear()
        found.update(api.request("GET", path))
        return bool((found.get("status") or {}).get("credential"))

    wait_for(ready, seconds=CREDENTIAL_SECONDS_MAX, what="its token")
    return found


def _config(api: Api, found: Document) -> str:
    from bullpen.datadir.credentials import client_config, exporter_config

    meta, status = found["metadata"], found["status"]
    namespace = meta["namespace"]
    secret = api.request(
        "GET", path_of(resource_named("secrets"), namespace, status["credential"]["name"])
    )
    try:
        authority = api.request(
            "GET", path_of(resource_named("configmaps"), namespace, CA_CONFIG_MAP)
        )
    except NotFound:
        authority = {"data": {}}
    write = client_config if found["kind"] == "Client" else exporter_config
    return write(
        namespace=namespace,
        name=meta["name"],
        endpoint=status["endpoint"],
        ca_pem=authority["data"].get(CA_KEY, "").encode(),
        token=base64.b64decode(secret["data"]["token"]).decode(),
    )


def _refuse_overwriting(path: Path, *, force: bool) -> None:
    if path.exists() and not force:
        raise Conflict(f"{path} exists; choose another file with --out, or overwrite it: --force")


def _write(path: Path, content: str) -> None:
    from bullpen.datadir.directory import SECRET, write_atomically

    write_atomically(path, content, mode=SECRET)
