"""What is run, what it needs, and what a place that runs it promises.

A provisioner says what to run as a ``Workload``; a ``Placement`` runs it and says
what became of it. Neither knows pools or leases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from pathlib import Path
from typing import Protocol

from bullpen.api.virtualtargetclass import Images, Scheduling

Key = tuple[str, str]
"""Namespace and name of the Exporter an instance stands behind."""

Listener = Callable[[Key], None]


class InstancePhase(Enum):
    BOOTING = auto()
    """Accepted. Files are fetched, or its exporter has not registered yet."""

    RUNNING = auto()
    """Its exporter has registered."""

    EXITED = auto()
    """Nothing of it runs. It stays listed, with its log, until it is removed."""


class ExitReason(StrEnum):
    """Why an instance is no more; stable, for conditions and metrics."""

    COMPLETED = "Completed"
    """It served its lease, or was retired: as it was meant to end."""

    START_FAILED = "StartFailed"
    """It never registered: bad settings, a missing driver or file, a refused token."""

    CRASHED = "Crashed"
    """It had registered, then failed or was killed."""

    RESET_FAILED = "ResetFailed"
    """It could not be shown to be clean after a lease, so it will not be offered again."""

    LOST = "Lost"
    """Whoever ran it ended; nobody knows more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """The running machine behind an Exporter, as last seen."""

    key: Key
    owner_uid: str
    """Uid of the Exporter. Another uid under the same name is another instance."""

    provisioner: str
    phase: InstancePhase
    reason: ExitReason | None = None
    """Given exactly when it has exited."""

    held: str = ""
    """Accepted, but there is no room for it yet: why, in CamelCase. Its boot has not begun."""

    detail: str = ""
    """For people: what it is doing, or what went wrong."""

    def __post_init__(self) -> None:
        assert (self.reason is None) == (self.phase is not InstancePhase.EXITED)
        assert not self.held or self.phase is InstancePhase.BOOTING


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file a workload reads and never changes."""

    path: str = ""
    """Where it is on the host that runs the workload, or"""

    url: str = ""
    """where to get it; kept by digest, so it is fetched once."""

    digest: str = ""
    """``sha256:`` and 64 hexadecimal digits; always given with a url."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must be there before a workload starts."""

    memory_bytes: int
    cpus: float
    artifacts: tuple[Artifact, ...] = ()
    kvm_for: str = ""
    """Architecture of a guest that would like KVM; empty if nobody asks."""

    memory_bytes_max: int = 0
    """The most it may use, whatever is accounted for; 0 if nobody knows."""

    cpus_max: float = 0.0
    """As many as it may keep busy; 0 for as many as there are."""

    file_bytes_max: int = 0
    """The largest file it may write; 0 if nobody knows."""

    runtime: str = ""
    """What the target itself runs in, such as ``qemu``; empty if it is only an exporter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a place found for a workload's needs."""

    artifacts: Mapping[Artifact, Path]
    kvm: bool = False
    """Proven to work for the architecture that was asked for."""

    launcher: str = ""
    """Socket of whoever starts programs in the target's runtime; empty if the exporter does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """What a class asks of a place that has a choice. One that has none ignores it."""

    images: Images = field(default_factory=Images)
    scheduling: Scheduling | None = None
    credentials: str = ""
    """Name of the Secret whose data are the workload's files."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """Of the Exporter, to find what belongs to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One exporter to run, and everything that belongs to it."""

    key: Key
    owner_uid: str
    provisioner: str
    needs: Needs
    render: Callable[[Site], str] = field(repr=False)
    """The exporter's complete config as JSON, once its place is known. Pure. A secret."""

    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Laid into ``credentials/`` below the exporter's working directory. Secrets."""

    single_use: bool = True
    """End after one lease. Otherwise reset and verify between leases."""

    retain: bool = False
    """Keep disks and logs when it is removed."""

    hosting: Hosting = field(default_factory=Hosting)


class Placement(Protocol):
    """Runs workloads. Every call is safe to repeat."""

    async def start(self, workload: Workload) -> Instance:
        """Accept the workload, or return the instance that already has its key.

        Returns before anything is fetched or started; what goes wrong later is an
        exit. Raises ``NoCapacity`` or ``Unreachable``.
        """

    async def stop(self, key: Key) -> None:
        """End it and erase what it left. Returns when it is gone; absent is a success.

        Raises ``Unreachable`` if whoever runs it does not say that it has ended.
        """

    async def retire(self, key: Key) -> None:
        """Let it finish the lease it serves, then end. Without a lease it ends now."""

    async def observe_all(self) -> tuple[Instance, ...]:
        """Everything held here, what a predecessor left included, in order of keys."""

    def listen(self, listener: Listener) -> None:
        """Be told a key whenever its instance appears, changes or vanishes."""
