"""Files that the parameters of a target name, and where its host has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import ClassVar

from bullpen.api.fields import Rule, Struct, about
from bullpen.api.kinds.virtualdisk import DIGEST_PATTERN


class ImageFormat(StrEnum):
    QCOW2 = "qcow2"
    RAW = "raw"


@dataclass(frozen=True, slots=True, kw_only=True)
class File(Struct):
    """A file on the host, or one to fetch."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(rule="has(self.path) != has(self.url)", message="give either a path or a url"),
        Rule(rule="!has(self.url) || has(self.digest)", message="a url needs a digest"),
    )

    path: str = field(default="", metadata=about("Absolute path on the host.", pattern="^/"))
    url: str = field(
        default="", metadata=about("URL to fetch the file from.", pattern="^(https?|file)://[^ ]+$")
    )
    digest: str = field(
        default="", metadata=about("Digest of the fetched file.", pattern=DIGEST_PATTERN)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineIdentity(Struct):
    """How a lasting machine identifies itself."""

    uuid: str = field(default="", metadata=about("UUID of the machine."))
    mac: str = field(default="", metadata=about("Address of its network card."))
    serial: str = field(default="", metadata=about("Serial number."))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedDisk(Struct):
    """A disk that is not the machine's own: a lasting one, or a shared image."""

    name: str = field(metadata=about("Name of the device.", required=True))
    path: str = field(metadata=about("Path of the file.", required=True))
    format: ImageFormat = field(default=ImageFormat.QCOW2, metadata=about("Format of the file."))
    read_only: bool = field(default=False, metadata=about("Whether it is never written to."))
    size_bytes: int = field(
        default=0, metadata=about("Size the machine should see; 0 for that of the file.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSite(Struct):
    """What the place where a machine runs provides; known when its exporter is started."""

    arch: str = field(default="", metadata=about("Architecture of the host."))
    kvm: bool = field(default=False, metadata=about("KVM was verified to work."))
    launcher: str = field(
        default="",
        metadata=about("Socket of the launcher of a machine in another container, or empty."),
    )
    files: Mapping[str, str] = field(
        default_factory=dict, metadata=about("Paths of fetched files by their digests.")
    )
    disks: tuple[AttachedDisk, ...] = field(
        default=(), metadata=about("Lasting disks and shared images, in boot order.")
    )
    identity: MachineIdentity | None = field(
        default=None, metadata=about("Identity of a lasting machine.")
    )
    lasting: bool = field(
        default=False, metadata=about("The machine is on from the start and kept between leases.")
    )

    def path(self, file: File) -> str:
        return file.path or self.files[file.digest]


def files(part: object) -> Iterator[File]:
    """Every file the parameters name, in order of definition."""
    if isinstance(part, File):
        yield part
    if isinstance(part, Struct):
        for found in fields(part):
            yield from files(getattr(part, found.name))
    elif isinstance(part, tuple):
        for item in part:
            yield from files(item)
    elif isinstance(part, Mapping):
        yield from files(tuple(part.values()))
