"""The sandbox of an instance on this host. Pure: ``exporter_process`` applies it."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

PRIVATE_PLACES = ("/root", "/home", "/tmp", "/var/tmp", "/run/user")
"""Where users and programs keep private files."""

FIRST_USER = 1_900_000_000
"""In a range that neither distributions, containers nor directory services use."""

USERS_PER_SERVICE = 1024
SERVICES_APART = 1 << 16
OPEN_FILES_MAX = 4096
PROCESSES_MAX = 512
"""Includes threads of the exporter and of its machine."""


class SandboxMode(StrEnum):
    """What to do if the host does not allow every layer."""

    REQUIRED = "required"
    """Start no instance."""

    PREFERRED = "preferred"
    """Start instances with the available layers."""

    OFF = "off"
    """Use no layer."""


class LayerName(StrEnum):
    USER = "user"
    FILES = "files"
    NETWORK = "network"
    PROGRAMS = "programs"
    LIMITS = "limits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of the sandbox, and why it is unavailable here, if it is."""

    name: LayerName
    problem: str = ""
    remedy: str = ""

    @property
    def available(self) -> bool:
        return not self.problem


class Confinement(msgspec.Struct, frozen=True, kw_only=True):
    """The sandbox of one instance. Layers that are empty or false are not used."""

    user: int = 0
    """Uid and gid to switch to; 0 to keep those of the service."""

    groups: tuple[int, ...] = ()
    namespace: bool = False
    """Enter a user namespace: gives a service that is not root the rights of root there."""

    files: bool = False
    data: str = ""
    """The data directory, which is hidden except for the following paths."""

    readable: tuple[str, ...] = ()
    room: bool = False
    wrapper: str = ""
    groups_of_limits: tuple[str, ...] = ()
    """Directories of control groups to join."""

    file_bytes_max: int = 0
    kvm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandboxing:
    """The reported sandbox of a class's targets."""

    complete: bool
    reason: str
    message: str


def sandboxing(mode: SandboxMode, layers: Collection[Layer]) -> Sandboxing:
    if mode is SandboxMode.OFF:
        return Sandboxing(
            complete=False, reason="SwitchedOff", message="sandbox.mode is off in the settings"
        )
    lacking = missing(layers)
    if not lacking:
        return Sandboxing(
            complete=True, reason="AllLayers", message="all layers of the sandbox are active"
        )
    message = f"this host does not allow {lacking}; bullpen doctor shows the remedy"
    return Sandboxing(complete=False, reason="LayersMissing", message=message)


def missing(layers: Collection[Layer]) -> str:
    """The unavailable layers, in one line; empty if all are available."""
    return "; ".join(f"{layer.name}: {layer.problem}" for layer in layers if layer.problem)


def user_range(data: Path, *, first: int = 0) -> range:
    """The uids of a service: as configured, else derived from its data directory.

    So two services on one host rarely share a uid, and a restarted service finds its own.
    """
    if first:
        return range(first, first + USERS_PER_SERVICE)
    place = zlib.crc32(str(data).encode()) % SERVICES_APART
    start = FIRST_USER + place * USERS_PER_SERVICE
    return range(start, start + USERS_PER_SERVICE)


def free_user(users: range, taken: Collection[int]) -> int:
    """A uid that no other instance has; 0 if all are taken."""
    return next((user for user in users if user not in taken), 0)


def covered(path: Path, places: Collection[Path]) -> bool:
    return any(path.is_relative_to(place) for place in places)


def outermost(places: Collection[Path]) -> Iterator[Path]:
    """The paths that are not inside another one."""
    for place in sorted(set(places)):
        if not any(place != other and place.is_relative_to(other) for other in places):
            yield place
