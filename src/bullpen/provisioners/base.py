"""The Provisioner protocol: the one interface between pools and the backends of targets.

A controller says which instances should exist; a provisioner creates them and reports what
it observes. It does not decide how many there should be.
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
    """The specification of one instance."""

    key: Key
    """Chosen by the caller. Two specs with the same key are the same instance."""

    owner_uid: str
    """Uid of the Exporter the instance belongs to."""

    parameters: Mapping[str, object] = field(default_factory=dict)
    """The parameters of the class, with those of the set merged over them."""

    drivers: tuple[Driver, ...] = ()
    """The drivers of the set's template; the provisioner completes them."""

    exporter_config: str = field(repr=False)
    """The exporter's YAML or JSON: metadata, endpoint, token, tls. A secret.

    The provisioner generates its ``export`` section.
    """

    credentials: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Data of the class's secret, to be read by the exporter only."""

    requests: Mapping[str, int | str] = field(default_factory=dict)
    """``cpu`` and ``memory`` to account for, if the class sets them."""

    recycle: RecycleStrategy = RecycleStrategy.EXIT_AND_REPLACE
    retain: bool = False
    """Keep disks and logs when the instance is removed."""

    hosting: Hosting = field(default_factory=Hosting)


class Provisioner(Protocol):
    """Creates instances. Every call is safe to repeat, in any order, at any time."""

    name: str
    """The name used in ``spec.provisioner`` of a VirtualTargetClass."""

    def check(
        self, parameters: Mapping[str, object], drivers: tuple[Driver, ...] = ()
    ) -> tuple[Cause, ...]:
        """All errors in the parameters, by path. Pure; calls no backend."""

    async def ensure(self, spec: InstanceSpec) -> Instance:
        """Start the instance, or return the existing instance with this key.

        Returns once the backend has accepted the request, not once the instance has booted. An
        exited instance, or one of another owner, is returned as it is: the caller removes it first.
        Raises ``NoCapacity`` and ``Unreachable``, which are transient, and ``Refused``, which is
        permanent until an operator acts.
        """

    async def remove(self, key: Key) -> None:
        """Stop and delete the instance; return when it is gone. Succeeds if it does not exist."""

    async def retire(self, key: Key) -> None:
        """Let the instance finish its lease, then exit. Succeeds if it is absent or exited."""

    async def observe_all(self) -> tuple[Instance, ...]:
        """Every instance the backend holds for us, including forgotten ones."""

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with a key whenever its instance appears, changes or vanishes.

        The listener is called on the event loop, must not block, and may be called for no reason.
        It makes polling of ``observe_all`` unnecessary.
        """


class Recipe(Protocol):
    """The pure half of a placed provisioner: what to run, not where."""

    name: str

    def check(
        self, parameters: Mapping[str, object], drivers: tuple[Driver, ...]
    ) -> tuple[Cause, ...]:
        """As in ``Provisioner``."""

    def needs(self, spec: InstanceSpec) -> Needs:
        """What must be available before it can start. The spec has passed ``check``."""

    def export(self, spec: InstanceSpec, site: Site) -> Mapping[str, object]:
        """The ``export`` section of the exporter's config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a recipe may know of the machine its process runs on."""

    arch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """The object a package registers under the entry point ``bullpen.provisioners``."""

    name: str
    """The name used in ``spec.provisioner`` of a VirtualTargetClass."""

    recipe: Callable[[Host], Recipe]
    preload: tuple[str, ...] = ()
    """Modules with its drivers, imported once and shared by all exporters of a host.

    They must not start threads or open gRPC channels when they are imported.
    """

    runtime: str = ""
    """The runtime of its targets in Pods; empty if a target consists of an exporter only."""
