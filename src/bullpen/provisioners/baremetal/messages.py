"""The protocol between this service and the agent of a host: frames as between supervisor and
zygote.

Agents of an earlier version go on beside a new one, so messages only ever gain fields that have
a default.
"""

from __future__ import annotations

import msgspec

from bullpen.core.targets.backends import HostLoad
from bullpen.core.targets.instances import Instance
from bullpen.errors import LabError, NoCapacity, ProgramMissing, Refused, StorageFailed, Unreachable
from bullpen.placements.base import InstanceSpec, Key

PROTOCOL = 1
"""Raised when an agent of this version cannot be used by an older service, or the reverse."""


class Ensure(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Start an instance. It has secrets. Answered by ``Done`` with the instance."""

    id: int
    spec: InstanceSpec


class UpdateCredentials(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Give a running instance other credentials. Answered by ``Done``."""

    id: int
    spec: InstanceSpec


class Remove(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Stop an instance and delete its files. Answered by ``Done`` when it is gone."""

    id: int
    key: Key


class Retire(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Let an instance finish its lease. Answered by ``Done``."""

    id: int
    key: Key


class List(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Answered by ``Listed``."""

    id: int


class Finish(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Start nothing any more, and end with the last instance."""


Command = Ensure | UpdateCredentials | Remove | Retire | List | Finish


class Hello(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Sent first to every service that connects."""

    protocol: int
    version: str
    instances: tuple[Instance, ...]


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a command failed: an error of ours, by its reason."""

    reason: str
    message: str


class Done(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    id: int
    instance: Instance | None = None
    failure: Failure | None = None


class Listed(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Every instance of the agent, and why it cannot start or control any, if so."""

    id: int
    instances: tuple[Instance, ...]
    problem: str = ""
    load: HostLoad | None = None


class Changed(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """An instance has appeared, changed or vanished."""

    key: Key
    instance: Instance | None = None


Answer = Hello | Done | Listed | Changed

COMMANDS: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
ANSWERS: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)

_ERRORS: dict[str, type[LabError]] = {
    kind.reason: kind for kind in (NoCapacity, ProgramMissing, Refused, StorageFailed, Unreachable)
}


def failure(error: LabError) -> Failure:
    """An error, for its way through the connection."""
    return Failure(reason=error.reason, message=error.message)


def error_of(found: Failure, host: str) -> LabError:
    """The error that a host reports; one of a newer version is something to try again."""
    return _ERRORS.get(found.reason, Unreachable)(f"host {host}: {found.message}")
