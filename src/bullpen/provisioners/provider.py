"""The API of a provider that makes machines, as a provisioner uses it.

An ``AttendedProvisioner`` (``attended.py``) makes a provisioner of a ``Provider``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable

from bullpen.api.exporter_template import Driver
from bullpen.core.targets.backends import BackendLimits, Inventory, Machine
from bullpen.errors import Cause
from bullpen.provisioners.base import Key, Needs, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """An account, project or set of hosts of a provider, as its ProviderConfig describes it."""

    key: Key
    """Namespace and name of the ProviderConfig."""

    lab: str
    """Marks what belongs to this lab; machines of other labs are never touched."""

    endpoint: str = ""
    parameters: Mapping[str, object] = field(default_factory=dict)
    limits: BackendLimits = field(default_factory=BackendLimits)
    place: str = ""
    """Identifies the settings that it is reached with: its machines are there."""

    closing: bool = False
    """Its ProviderConfig is deleted: nothing new is created."""

    changed: bool = False
    """Its ProviderConfig has other settings, which wait until it is empty: nothing is created."""

    credentials: Callable[[], Mapping[str, bytes]] = field(default=dict, repr=False)
    """The provider's own, read at each use. No exporter gets them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A machine to create, and what it carries so that it is found again."""

    key: Key
    owner_uid: str
    token: str
    """The same for every attempt; the provider creates one machine for it."""

    profile: Profile
    expires: datetime
    """When the machine ends by itself, unless it is renewed."""

    keys: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """What ``new_keys`` made for this machine; the same for every attempt."""


class Provider(Protocol):
    """The API of a provider. Raises ``Unreachable``, ``NoCapacity`` and ``Refused``."""

    name: str
    idempotent: bool
    """Whether a creation that is repeated with its token creates nothing."""

    def check(
        self, parameters: Mapping[str, object], drivers: tuple[Driver, ...]
    ) -> tuple[Cause, ...]:
        """As in ``Provisioner``."""

    def needs(self, profile: Profile) -> Needs:
        """What the exporter of a machine needs."""

    def hourly_cost(self, profile: Profile) -> float:
        """The estimated cost of a machine; 0 if unknown."""

    def new_keys(self) -> Mapping[str, bytes]:
        """Secrets of one machine, such as the key pair for its logins; empty if it needs none.

        They are durable before the machine is created.
        """

    def export(
        self, profile: Profile, machine: Machine, keys: Mapping[str, bytes]
    ) -> Mapping[str, object]:
        """The ``export`` section of the exporter's config for a machine that runs. A secret."""

    async def grant(self, backend: Backend, machine: Machine) -> Mapping[str, bytes]:
        """Files for the exporter of a machine that runs; empty if it needs none. Secrets.

        They let it use the provider's API for this machine alone, without the provider's
        credentials, for ``backends.GRANT_HOLDS``: newer ones are asked for in time, as long as the
        exporter runs. It has them in its directory ``granted``.
        """

    async def list_machines(self, backend: Backend) -> Inventory:
        """All machines of the backend's lab; raises if the listing is not complete."""

    async def create(self, backend: Backend, order: Order) -> Machine:
        """Returns once the provider has accepted it."""

    async def renew(self, backend: Backend, machine: Machine, expires: datetime) -> None:
        """Let a machine end by itself at a later time.

        It must end even if this service never runs again: by the provider, or by a timer in the
        machine. A provider whose machines cannot do so lists them without ``expires``.
        """

    async def delete(self, backend: Backend, machine: Machine) -> None:
        """Returns once the provider has accepted it; absent is a success."""


@runtime_checkable
class StoppingProvider(Provider, Protocol):
    """A provider that can keep a machine stopped, with its disks.

    Only machines that it lists as ``lasting`` are stopped: those of a profile that is. Both calls
    are safe to repeat. It lists them as ``STOPPING`` and ``STOPPED``, and without cost.
    """

    async def stop(self, backend: Backend, machine: Machine) -> None:
        """Returns once the provider has accepted it; a machine that is stopped is a success."""

    async def start(self, backend: Backend, machine: Machine) -> None:
        """Returns once the provider has accepted it; a machine that runs is a success.

        Its address may be another one afterwards. Raises ``NoCapacity`` as a creation does.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineKeys:
    """The keys of an Exporter's machine, and where it was ordered first."""

    keys: Mapping[str, bytes] = field(repr=False)
    backend: str
    """The name of the ProviderConfig."""


class BackendRecords(Protocol):
    """The durable record of every backend that may hold something of ours."""

    async def begin(self, backend: Key, place: str = "") -> None:
        """Record it; returns when the record is durable. Raises ``Refused`` if it is deleted.

        ``place``: where it is; as long as it is on record, its settings do not change.
        """

    async def end(self, backend: Key, is_empty: Callable[[], bool]) -> bool:
        """Erase the record if the backend is still empty; whether it was erased."""

    async def release(self, secret: Key) -> None:
        """Let a Secret go, unless a backend on record needs it."""

    async def mark_class(self, key: Key, *, kept: bool) -> None:
        """Keep a class that refers to a backend on record, or let it go."""


class MachineRecords(BackendRecords, Protocol):
    """The record of backends, and the keys of the machines in them."""

    async def keep_keys(self, key: Key, uid: str, made: MachineKeys) -> MachineKeys:
        """The keys of an Exporter's machine: those on record, else ``made``, which then are.

        Returns when they are durable. Raises ``Refused`` if the Exporter is deleted.
        """

    async def move_keys(self, key: Key, uid: str, backend: str) -> None:
        """Record that its machine is created at another backend; returns when that is durable."""

    async def kept_keys(self, key: Key, uid: str) -> MachineKeys | None:
        """What is on record for an Exporter; None if nothing is."""
