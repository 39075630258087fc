"""``bullpen cloud``: what a lab has at its providers, and the deletion of what was left there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bullpen.api import codec
from bullpen.api.kinds.core import Secret
from bullpen.api.kinds.providerconfig import ProviderConfig
from bullpen.api.paths import Document
from bullpen.cli.connection import Api, path_of, resource_named
from bullpen.cli.get import list_all
from bullpen.cli.options import Exit, default_data_directory, output
from bullpen.cli.output import echo_document, table
from bullpen.kit import times

if TYPE_CHECKING:
    from bullpen.app.cloud import Account, Listed

OWN_VERSION = "+bullpen-"
"""In the version that Bullpen's own API server reports."""

_COLUMNS = ("provider", "lab", "id", "exporter", "state", "expires", "hourlyCost", "owned")

F = TypeVar("F", bound=Callable[..., Any])


def chosen(function: F) -> F:
    """The options that say whose machines are meant."""
    for decorate in (
        click.option(
            "--data",
            type=click.Path(path_type=Path, file_okay=False),
            help="Data directory of the service [default: $BULLPEN_DATA, else the usual one].",
        ),
        click.option(
            "--kubeconfig",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Kubeconfig of a cluster, instead of a data directory.",
        ),
        click.option("--lab", default="", help="Another lab, by the id that its machines carry."),
    ):
        function = decorate(function)
    return function


@click.group()
def cloud() -> None:
    """List and delete the machines of this lab at the providers of its ProviderConfigs."""


@cloud.command("list")
@chosen
@output("table", "json", "yaml")
def list_(data: Path | None, kubeconfig: Path | None, lab: str, output: str) -> int:
    """Show every machine, as the providers list them now.

    Exits with 4 if a provider does not answer.
    """
    from bullpen.app import cloud

    place = Place(data, kubeconfig, lab)
    found = asyncio.run(cloud.listed(place.accounts()))
    rows = [*_rows(found, place.owners())]
    if output != "table":
        echo_document({"machines": rows, "errors": _errors(found)}, output)
    elif rows:
        click.echo(table(_COLUMNS, [[row[column] for column in _COLUMNS] for row in rows]))
    else:
        click.echo("No provider lists a machine of this lab.")
    return _outcome(found)


@cloud.command()
@chosen
@click.option("--dry-run", is_flag=True, help="Show what would be deleted.")
@click.option("--yes", is_flag=True, help="Delete the machines of another lab without asking.")
def sweep(data: Path | None, kubeconfig: Path | None, lab: str, *, dry_run: bool, yes: bool) -> int:
    """Delete the machines that no Exporter stands for.

    With --lab, all machines of another lab: make sure that it does not exist any more. Exits with
    4 if a provider does not answer.
    """
    asyncio.run(_sweep(Place(data, kubeconfig, lab), dry_run=dry_run, sure=yes or not lab))
    return Exit.OK


async def _sweep(place: Place, *, dry_run: bool, sure: bool) -> None:
    from bullpen.app import cloud
    from bullpen.core.targets import backends
    from bullpen.errors import Unreachable

    found = await cloud.listed(place.accounts())
    owners = place.owners()
    left = [(each, m) for each in found for m in backends.unowned(each.machines, owners)]
    for each, machine in left if dry_run or not sure else ():
        click.echo(f"{machine.id} of {_provider(each.account)} would be deleted")
    if left and not dry_run and not sure:
        click.confirm(f"Delete these {len(left)} machines of lab {place.lab}?", abort=True)
    problems = _errors(found)
    for done in await cloud.sweep(found, owners) if not dry_run else ():
        if done.error:
            problems.append(f"{done.machine.id}: {done.error}")
        else:
            click.echo(f"{done.machine.id} of {_provider(done.account)} is being deleted")
    if not left:
        click.echo("Nothing is left over.")
    if problems:
        raise Unreachable("; ".join(problems))


class Place:
    """The objects of a lab, and the machines that it may ask for."""

    def __init__(self, data: Path | None, kubeconfig: Path | None, lab: str) -> None:
        from bullpen.datadir import lab_identity
        from bullpen.datadir.directory import Layout

        self.lab = lab
        if kubeconfig is not None:
            self._api, self._identity = Api.from_kubeconfig(kubeconfig), ""
            self._refuse_own(kubeconfig)
        else:
            place = (data or default_data_directory()).resolve()
            self._api = Api.from_data(place)
            self._identity = lab_identity.known(Layout(place))

    def _refuse_own(self, kubeconfig: Path) -> None:
        """The id of an embedded home is in its data directory only, unlike that of a cluster."""
        from bullpen.errors import Refused

        version = self._api.request("GET", "/version")
        if OWN_VERSION in version.get("gitVersion", "") and not self.lab:
            raise Refused(
                f"{kubeconfig} is of `bullpen up`, whose machines carry an id that is in its data"
                " directory: use --data, on the machine that has it"
            )

    def accounts(self) -> Iterator[Account]:
        """Every ProviderConfig whose provisioner is installed here and makes machines."""
        from bullpen.app import cloud
        from bullpen.core.targets import provider_status
        from bullpen.provisioners import plugins

        for document in list_all(self._api, resource_named("providerconfigs"), None):
            config = codec.decode(ProviderConfig, document)
            plugin = plugins.load(config.spec.provisioner)
            if plugin.provider is None:
                continue
            namespace = self._get("namespaces", None, config.metadata.namespace)
            own = provider_status.lab(self._identity, namespace["metadata"]["uid"])
            yield cloud.account(
                config, self._secret(config), plugin.provider(), lab=self.lab or own
            )

    def owners(self) -> dict[tuple[str, str], str]:
        """The uids of all Exporters; none of them is of another lab."""
        if self.lab:
            return {}
        found = list_all(self._api, resource_named("exporters"), None)
        return {
            (item["metadata"]["namespace"], item["metadata"]["name"]): item["metadata"]["uid"]
            for item in found
        }

    def _secret(self, config: ProviderConfig) -> Secret | None:
        reference = config.spec.credentials_secret_ref
        if reference is None:
            return None
        found = self._get("secrets", config.metadata.namespace, reference.name)
        return codec.decode(Secret, found)

    def _get(self, word: str, namespace: str | None, name: str) -> Document:
        found: Document = self._api.request("GET", path_of(resource_named(word), namespace, name))
        return found


def _rows(found: list[Listed], owners: dict[tuple[str, str], str]) -> Iterator[Document]:
    for each in found:
        for machine in each.machines:
            yield {
                "provider": _provider(each.account),
                "lab": each.account.backend.lab,
                "id": machine.id,
                "exporter": "/".join(machine.key),
                "state": machine.state.name.capitalize(),
                "expires": times.text(machine.expires) if machine.expires is not None else "never",
                "hourlyCost": f"{machine.hourly_cost:.2f}",
                "owned": owners.get(machine.key) == machine.owner_uid,
            }


def _provider(account: Account) -> str:
    return "/".join(account.backend.key)


def _errors(found: list[Listed]) -> list[str]:
    return [f"{_provider(each.account)}: {each.error}" for each in found if each.error]


def _outcome(found: list[Listed]) -> int:
    for problem in _errors(found):
        click.echo(problem, err=True)
    return Exit.UNREACHABLE if _errors(found) else Exit.OK
