"""Files that the parameters of a target name, and where its host has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

from bullpen.api.fields import Rule, Struct, about

_DIGEST = r"^sha256:[0-9a-f]{64}$"


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
    digest: str = field(default="", metadata=about("Digest of the fetched file.", pattern=_DIGEST))


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
