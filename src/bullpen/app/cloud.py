"""The machines of a lab at its providers, as the providers list them now.

For people: it asks the providers itself, so it also shows and deletes what a lab left behind that
does not exist any more.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bullpen.api.kinds.core import Secret
from bullpen.api.kinds.providerconfig import ProviderConfig
from bullpen.controllers.targets.provider_reconciler import backend_of
from bullpen.core.targets import backends
from bullpen.core.targets.backends import Key, Machine
from bullpen.errors import LabError
from bullpen.provisioners.provider import Backend, Provider


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A backend, and the provider that is asked for its machines."""

    provider: Provider
    backend: Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The machines of an account, or why they are not known."""

    account: Account
    machines: tuple[Machine, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A machine whose deletion the provider has accepted, or why it has not."""

    account: Account
    machine: Machine
    error: str = ""


def account(
    config: ProviderConfig, secret: Secret | None, provider: Provider, *, lab: str
) -> Account:
    """The account of a ProviderConfig, for the machines that carry ``lab``."""
    data = secret.data if secret is not None else {}
    found = {name: base64.b64decode(value) for name, value in data.items()}
    return Account(
        provider=provider, backend=backend_of(config, lab=lab, credentials=lambda: found)
    )


async def listed(accounts: Iterable[Account]) -> list[Listed]:
    """Ask every provider; one that does not answer does not keep the others from it."""
    found = []
    for each in accounts:
        try:
            inventory = await each.provider.list_machines(each.backend)
        except LabError as error:
            found.append(Listed(account=each, error=error.message))
        else:
            found.append(Listed(account=each, machines=inventory.machines))
    return found


async def sweep(found: Iterable[Listed], owners: Mapping[Key, str]) -> list[Deletion]:
    """Delete the machines that no Exporter stands for.

    ``owners``: the uids of all Exporters, read after the machines were listed. An Exporter exists
    before its machine, so the machine of one that is missing is left over.
    """
    done = []
    for each in found:
        for machine in backends.unowned(each.machines, owners):
            try:
                await each.account.provider.delete(each.account.backend, machine)
            except LabError as error:
                done.append(Deletion(account=each.account, machine=machine, error=error.message))
            else:
                done.append(Deletion(account=each.account, machine=machine))
    return done
