"""An instance's spec, the workload made from it, and the contract of placements.

A provisioner describes what to run as a ``Workload``; a ``Placement`` runs it and reports
its state. Neither knows pools or leases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bullpen.api.paths import encode
from bullpen.core.targets.disks import Create, StoredDisk
from bullpen.core.targets.exporter_config import Connection, exporter_config
from bullpen.core.targets.instances import Instance
from bullpen.core.targets.profiles import Profile

Key = tuple[str, str]
"""Namespace and name of the Exporter an instance belongs to."""

Listener = Callable[[Key], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file a workload reads and never changes."""

    path: str = ""
    """Path on the host that runs the workload; exclusive with ``url``."""

    url: str = ""
    """Where to download it; cached by digest, so it is fetched once."""

    digest: str = ""
    """``sha256:`` and 64 hexadecimal digits; required with a url."""

    may_be_directory: bool = False
    """Whether the path may be that of a directory, such as an installation."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that a workload runs where it is placed."""

    name: str
    package: str
    """The Debian package that contains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must be available before a workload starts."""

    memory_bytes: int
    cpus: float
    artifacts: tuple[Artifact, ...] = ()
    programs: tuple[Program, ...] = ()
    """Programs of the host; a container image has its own."""

    kvm_for: str = ""
    """Architecture of a guest that can use KVM; empty if KVM is not needed."""

    memory_bytes_max: int = 0
    """The most memory it may use, whatever is accounted for; 0 if unknown."""

    cpus_max: float = 0.0
    """The most CPUs it may keep busy; 0 for no limit."""

    file_bytes_max: int = 0
    """The largest file it may write; 0 if unknown."""

    runtime: str = ""
    """The runtime of the target itself, such as ``qemu``; empty for an exporter only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a placement provides for a workload's needs."""

    artifacts: Mapping[Artifact, Path]
    kvm: bool = False
    """Verified to work for the requested architecture."""

    launcher: str = ""
    """Socket of the launcher in the target's runtime; empty if the exporter starts programs."""

    disks: Mapping[str, Path] = field(default_factory=dict)
    """Paths of the lasting disks by their names in the profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """The specification of one instance."""

    key: Key
    """Chosen by the caller. Two specs with the same key are the same instance."""

    owner_uid: str
    """Uid of the Exporter the instance belongs to."""

    profile: Profile
    """What it is created from: the same value for all members of one revision of a set."""

    connection: Connection
    """How its exporter reaches the service. A secret."""

    credentials: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Data of the class's Secret, to be read by the exporter only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One exporter to run, with everything it needs."""

    spec: InstanceSpec
    needs: Needs
    export: Callable[[Site], Mapping[str, object]] = field(repr=False)
    """The ``export`` section of the exporter's config, once its site is known. Pure."""

    granted: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Files for the exporter only, in its directory ``granted``, that ``grant`` replaces."""

    @property
    def key(self) -> Key:
        return self.spec.key

    def config(self, site: Site) -> bytes:
        """The exporter's complete config: an ExporterConfig as JSON. A secret."""
        return encode(
            exporter_config(
                self.key,
                self.spec.connection,
                single_use=self.spec.profile.single_use,
                export=self.export(site),
            )
        )


class Placement(Protocol):
    """Runs workloads. Every call is safe to repeat."""

    async def start(self, workload: Workload) -> Instance:
        """Accept the workload, or return the existing instance with its key.

        Returns before anything is fetched or started; a later failure is reported as an exit.
        Raises ``NoCapacity``, ``ProgramMissing`` or ``Unreachable``.
        """

    async def stop(self, key: Key) -> None:
        """Stop it and delete its files. Returns when it is gone; absent is a success.

        Raises ``Unreachable`` if its host does not confirm that it has ended.
        """

    async def retire(self, key: Key) -> None:
        """Let it finish its lease, then exit. Without a lease it exits now."""

    async def change_disks(self, workload: Workload) -> None:
        """Let a running machine have the lasting disks of ``workload``, at their sizes.

        Raises ``Refused`` with the reason if only a restart can do it, else as ``start``.
        """

    async def update_credentials(self, key: Key, credentials: Mapping[str, bytes]) -> None:
        """Let a running instance have these files; absent is a success. Raises as ``start``."""

    async def grant(self, key: Key, files: Mapping[str, bytes]) -> None:
        """Let a running instance have newer granted files, each whole; absent is a success.

        Raises as ``start``.
        """

    async def observe_all(self) -> tuple[Instance, ...]:
        """All instances here, including those of a previous process, in key order."""

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with a key whenever its instance appears, changes or vanishes."""


class DiskStorage(Protocol):
    """Stores the content of VirtualDisks. Every call is safe to repeat, also after a crash.

    A disk is identified by its namespace and name, and the uid of its object. Raises
    ``NoCapacity`` if there is no space, ``StorageFailed`` and ``Unreachable``, which are
    transient, and ``Refused``, which is permanent until an operator acts.
    """

    host: str

    async def look(self, key: Key, uid: str, *, attached_to: str = "") -> StoredDisk | None:
        """The content; None if it does not exist. ``attached_to`` is the target that has it."""

    async def create(self, key: Key, uid: str, step: Create) -> StoredDisk:
        """Create the content completely, or return the existing content."""

    async def grow(self, key: Key, uid: str, size_bytes: int) -> StoredDisk:
        """Grow the content to at least this size; no machine has it open."""

    async def delete(self, key: Key, uid: str) -> None:
        """Delete the content; absent is a success."""
