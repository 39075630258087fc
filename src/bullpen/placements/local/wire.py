"""The protocol between the supervisor and the zygote: length-prefixed JSON.

Commands go one way, events the other, each in order. The socket is in a directory only
their user can enter, so no other user can connect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from bullpen.core.targets.instances import ExitReason
from bullpen.drivers.target_files import AttachedDisk
from bullpen.placements.base import Key
from bullpen.placements.local.confinement import Confinement

FRAME_BYTES_MAX = 4 << 20
"""A config with its certificates is a few KiB; anything near this is an error."""

LENGTH_BYTES = 4


class Spawn(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Fork an exporter. Answered by ``Spawned``."""

    key: Key
    token: str
    """Unique to this instance; every process it starts carries it."""

    directory: str
    runtime: str
    config: msgspec.Raw
    """The exporter's ExporterConfig: JSON that is part of this message as it is. A secret."""

    single_use: bool
    retain: bool
    keep: bool = False
    confinement: Confinement | None = None
    """Its sandbox; None for no sandbox."""


class Stop(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Stop it, gracefully at first. Answered by ``Exited``, even if it does not exist."""

    key: Key


class Retire(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Let it finish its lease and exit. ``Exited`` follows at some later time."""

    key: Key


class ChangeDisks(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Let its machine have these disks, while it runs. Answered by ``DisksChanged``."""

    key: Key
    disks: tuple[AttachedDisk, ...]
    """All disks in boot order. An image that it has already needs no path."""


class Noted(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Acknowledges an exit. Until then, every supervisor that connects is told of it."""

    key: Key


class Quit(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """End every exporter, then the zygote."""


class Ping(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Answered by ``Pong`` at once."""


Command = Spawn | Stop | Retire | ChangeDisks | Noted | Quit | Ping


class ChildState(msgspec.Struct, frozen=True, kw_only=True):
    key: Key
    registered: bool
    paused: str = ""
    """Why its machine is paused; empty if it is not."""


class Spawned(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    key: Key
    pid: int


class Registered(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    key: Key


class DisksChanged(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    key: Key
    problem: str
    """Why the machine cannot have the disks without a restart; empty if it has them."""


class KvmFailed(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """A machine of the instance works with emulation and did not with KVM."""

    key: Key
    arch: str
    problem: str


class Paused(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """The machine of the instance is paused, or goes on."""

    key: Key
    problem: str
    """Why it is paused; empty if it goes on."""


class Exited(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """No process of the instance is left."""

    key: Key
    reason: ExitReason
    detail: str


class Hello(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Sent once to every supervisor that connects."""

    version: str
    children: tuple[ChildState, ...]
    ended: tuple[Exited, ...]
    """Exits that have not been acknowledged."""


class Pong(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """The zygote serves its supervisor."""


Event = Hello | Spawned | Registered | DisksChanged | KvmFailed | Paused | Exited
Answer = Event | Pong
"""Everything that a zygote sends."""

M = TypeVar("M")


def frame(message: msgspec.Struct) -> bytes:
    """The bytes to send for ``message``."""
    body = msgspec.json.encode(message)
    assert len(body) <= FRAME_BYTES_MAX, f"{type(message).__name__} has {len(body)} bytes"
    return len(body).to_bytes(LENGTH_BYTES) + body


class Frames(Generic[M]):
    """Splits received bytes into messages of one kind."""

    def __init__(self, decoder: msgspec.json.Decoder[M]) -> None:
        self._decoder = decoder
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[M]:
        """The messages completed by ``data``; raises ``ValueError`` if it is malformed."""
        self._pending += data
        while len(self._pending) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._pending[:LENGTH_BYTES])
            if end > FRAME_BYTES_MAX:
                raise ValueError(f"a message of {end} bytes is over the limit")
            if len(self._pending) < end:
                return
            body = bytes(self._pending[LENGTH_BYTES:end])
            del self._pending[:end]
            yield self._decoder.decode(body)


DISK_CHANGES: msgspec.json.Decoder[ChangeDisks] = msgspec.json.Decoder(ChangeDisks)
"""What an exporter is told."""

COMMANDS: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
ANSWERS: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
EVENTS: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
