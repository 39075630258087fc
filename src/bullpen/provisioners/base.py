"""What a provisioner is: the one interface between pools and whatever makes targets.

A controller says which instances there should be; a provisioner makes it so and
says what it sees. It keeps no opinion about how many there should be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from bullpen.api.exporterset import Driver, RecycleStrategy
from bullpen.errors import Cause
from bullpen.placements.base import (
    Artifact,
    ExitReason,
    Hosting,
    Instance,
    InstancePhase,
    Key,
    Listener,
    Needs,
    Site,
)

__all__ = [
    "Artifact",
    "ExitReason",
    "Host",
    "Hosting",
    "Instance",
    "InstancePhase",
    "InstanceSpec",
    "Key",
    "Listener",
    "Needs",
    "Plugin",
    "Provisioner",
    "Recipe",
    "Site",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """One instance to have."""

    key: Key
    """Chosen by the caller. Two specs with one key are one instance."""

    owner_uid: str
    """Uid of the Exporter it stands behind."""

    parameters: Mapping[str, object] = field(default_factory=dict)
    """Those of the class with those of the set merged over them."""

    drivers: tuple[Driver, ...] = ()
    """Of the set's template; the provisioner completes them."""

    exporter_config: str = field(repr=False)
    """The exporter's YAML or JSON: metadata, endpoint, token, tls. A secret.

    Its ``export`` section is the provisioner's to make.
    """

    credentials: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Data of the class's secret, for the exporter's eyes only."""

    requests: Mapping[str, int | str] = field(default_factory=dict)
    """``cpu`` and ``memory`` to account for, where the class says so."""

    recycle: RecycleStrategy = RecycleStrategy.EXIT_AND_REPLACE
    retain: bool = False
    """Keep disks and logs when it is removed."""

    hosting: Hosting = field(default_factory=Hosting)


class Provisioner(Protocol):
    """Makes instances. Every call is safe to repeat, in any order, at any time."""

    name: str
    """What a VirtualTargetClass writes in ``spec.provisioner``."""

    def check(
        self, parameters: Mapping[str, object], drivers: tuple[Driver, ...] = ()
    ) -> tuple[Cause, ...]:
        """Everything wrong with the parameters, by path. Pure; asks nobody."""

    async def ensure(self, spec: InstanceSpec) -> Instance:
        """Start the instance, or return the one that already has this key.

        Returns once the backend has accepted the request, not once the instance has
        booted. One that has exited is returned as it is, and one of another owner too:
        the caller removes it first. Raises ``NoCapacity`` and ``Unreachable``, which
        pass, and ``Refused``, which does not unless somebody acts.
        """

    async def remove(self, key: Key) -> None:
        """Stop and erase the instance; return when it is gone. Absent is a success."""

    async def retire(self, key: Key) -> None:
        """Let it finish the lease it serves, then exit. Absent or exited is a success."""

    async def observe_all(self) -> tuple[Instance, ...]:
        """Every instance the backend holds for us, including forgotten ones."""

    def listen(self, listener: Listener) -> None:
        """Be told a key whenever its instance appears, changes or vanishes.

        The listener is called on the event loop, must not block, and may be called for
        no reason. It is why nobody needs to poll ``observe_all``.
        """


class Recipe(Protocol):
    """The pure half of a provisioner whose instances are placed: what to run, not where."""

    name: str

    def check(
        self, parameters: Mapping[str, object], drivers: tuple[Driver, ...]
    ) -> tuple[Cause, ...]:
        """As a ``Provisioner``'s."""

    def needs(self, spec: InstanceSpec) -> Needs:
        """What must be found before it can start. The spec passed ``check``."""

    def export(self, spec: InstanceSpec, site: Site) -> Mapping[str, object]:
        """The ``export`` section of the exporter's config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a recipe may know of the machine that its process runs on."""

    arch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """What a package registers under the entry point ``bullpen.provisioners``."""

    name: str
    """What a VirtualTargetClass writes in ``spec.provisioner``."""

    recipe: Callable[[Host], Recipe]
    preload: tuple[str, ...] = ()
    """Modules with its drivers, loaded once and shared by all exporters of a host.

    They must not start threads or open gRPC channels when they are imported.
    """

    runtime: str = ""
    """What its targets run in where they are Pods; empty if an exporter is all there is."""
