"""The Provisioner protocol: the one interface between pools and the backends of targets.

A controller says which instances should exist; a provisioner creates them and reports what
it observes. It does not decide how many there should be.

An ``InstanceSpec`` carries the ``Profile`` of its set and class whole. ``parameters`` in it
belong to the provisioner: only its ``check``, its recipe and its driver look into them.

A target that a provider's API makes, with its exporter beside us, is described by a ``Provider``
(``provisioners/provider.py``): ``AttendedProvisioner`` turns it into a ``Provisioner``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from bullpen.api.exporter_template import Driver
from bullpen.core.targets.exporter_config import Connection
from bullpen.core.targets.instances import ExitReason, Instance, InstancePhase
from bullpen.core.targets.profiles import Profile
from bullpen.errors import Cause
from bullpen.placements.base import Artifact, InstanceSpec, Key, Listener, Needs, Program, Site

if TYPE_CHECKING:
    from bullpen.core.targets.backends import Listing
    from bullpen.kit.clock import Clock
    from bullpen.kit.ids import Ids
    from bullpen.provisioners.baremetal.links import HostRecords
    from bullpen.provisioners.provider import Backend, BackendRecords, Provider

__all__ = [
    "Artifact",
    "BackedProvisioner",
    "Connection",
    "ExitReason",
    "Host",
    "Instance",
    "InstancePhase",
    "InstanceSpec",
    "Key",
    "Listener",
    "Needs",
    "Plugin",
    "Profile",
    "Program",
    "Provisioner",
    "Recipe",
    "Site",
]


class Provisioner(Protocol):
    """Creates instances. Every call is safe to repeat, in any order, at any time."""

    name: str
    """The name used in ``spec.provisioner`` of a VirtualTargetClass."""

    def check(self, profile: Profile) -> tuple[Cause, ...]:
        """All errors in parameters, drivers and targets, by path. Pure; calls no backend."""

    async def ensure(self, spec: InstanceSpec) -> Instance:
        """Start the instance, or return the existing instance with this key.

        A stopped one is started. Returns once the backend has accepted the request, not once the
        instance has booted. An exited instance, or one of another owner, is returned as it is: the
        caller removes it first.
        Raises ``NoCapacity`` and ``Unreachable``, which are transient, and ``Refused``, which is
        permanent until an operator acts.
        """

    async def remove(self, key: Key) -> None:
        """Stop and delete the instance; return when it is gone. Succeeds if it does not exist."""

    async def stop(self, key: Key) -> None:
        """Stop the instance of a lasting target; return when it is stopped. ``ensure`` starts it.

        Its machine is kept with its disks and listed as ``STOPPED`` if the provisioner can do so;
        otherwise this is ``remove``. Succeeds if it does not exist.
        """

    async def retire(self, key: Key) -> None:
        """Let the instance finish its lease, then exit. Succeeds if it is absent or exited."""

    async def change_disks(self, spec: InstanceSpec) -> None:
        """Let a running instance have the lasting disks of ``spec``, at their sizes.

        Raises ``Refused`` with the reason if only a restart can do it, else as ``ensure``.
        """

    async def update_credentials(self, spec: InstanceSpec) -> None:
        """Let a running instance have the credentials of ``spec``; those it lost are removed.

        Succeeds if it is absent or exited. Raises as ``ensure``.
        """

    async def observe_all(self) -> tuple[Instance, ...]:
        """Every instance the backend holds for us, including forgotten ones."""

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with a key whenever its instance appears, changes or vanishes.

        The listener is called on the event loop, must not block, and may be called for no reason.
        It makes polling of ``observe_all`` unnecessary.
        """


@runtime_checkable
class BackedProvisioner(Provisioner, Protocol):
    """A provisioner whose instances are in accounts, projects or hosts of ProviderConfigs."""

    @property
    def records(self) -> BackendRecords:
        """The durable record of its backends."""

    def use(self, found: Iterable[Backend]) -> None:
        """The backends that exist now. Those that may hold something of ours stay known."""

    def listing(self, backend: Key) -> Listing:
        """What is known of a backend."""

    def is_empty(self, backend: Key) -> bool:
        """Whether the backend has shown that it holds nothing of ours."""

    async def refresh(self, key: Key) -> Listing:
        """List a backend. Raises ``Unavailable`` or ``Refused`` if the listing is incomplete."""

    def listen_backends(self, listener: Listener) -> None:
        """Call ``listener`` with a backend that should be listed now."""

    async def close(self) -> None:
        """Close its connections; what it made stays."""


class Recipe(Protocol):
    """The pure half of a placed provisioner: what to run, not where."""

    name: str

    def check(
        self, parameters: Mapping[str, object], drivers: tuple[Driver, ...]
    ) -> tuple[Cause, ...]:
        """All errors in the parameters of a target, by path."""

    def needs(self, profile: Profile) -> Needs:
        """What must be available before an instance can start. The profile passed ``check``."""

    def export(self, profile: Profile, site: Site) -> Mapping[str, object]:
        """The ``export`` section of the exporter's config, in Jumpstarter's format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a recipe may know of the machine its process runs on."""

    arch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """The object a package registers under the entry point ``bullpen.provisioners``."""

    name: str
    """The name used in ``spec.provisioner`` of a VirtualTargetClass."""

    recipe: Callable[[Host], Recipe] | None = None
    provider: Callable[[], Provider] | None = None
    """For machines that an API makes; exclusive with ``recipe``."""

    hosts: Callable[[HostRecords, Clock, Ids], BackedProvisioner] | None = None
    """For instances on other hosts, with the records of their hosts; exclusive with both."""

    preload: tuple[str, ...] = ()
    """Modules with its drivers, imported once and shared by all exporters of a host.

    They must not start threads or open gRPC channels when they are imported.
    """

    runtime: str = ""
    """The runtime of its targets in Pods; empty if a target consists of an exporter only."""

    def __post_init__(self) -> None:
        kinds = (self.recipe, self.provider, self.hosts)
        assert sum(kind is not None for kind in kinds) == 1, "a recipe, a provider or hosts"
