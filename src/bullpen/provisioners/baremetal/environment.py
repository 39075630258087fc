"""The environment that agents run in: this program and the packages it needs, as one archive.

It is copied from the environment of this process, so a host needs nothing from outside but a
Python of the same version.
"""

from __future__ import annotations

import hashlib
import io
import re
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import bullpen

DRIVERS = "jumpstarter.drivers"
"""The entry points of Jumpstarter's drivers: every one that is installed here works there too."""

LEFT_OUT = frozenset({"jumpstarter-cli"})
"""The command line: half of the environment's size, and no exporter needs it."""

DIGEST_LENGTH = 16
FILE_MODE = 0o644
COMPRESSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The files of an environment by their names in it."""

    files: tuple[tuple[str, Path], ...]
    digest: str

    def write(self, path: Path) -> None:
        """Write it as an archive. Takes some seconds."""
        with tarfile.open(path, "w:gz", compresslevel=COMPRESSION) as archive:
            for name, file in self.files:
                content = file.read_bytes()
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), FILE_MODE
                archive.addfile(entry, io.BytesIO(content))


@cache
def current() -> Environment:
    """The environment of this process. Reads it completely, once."""
    files = tuple(sorted(dict((*_own(), *_needed())).items()))
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    for name, file in files:
        digest.update(f"\0{name}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return Environment(files=files, digest=digest.hexdigest()[:DIGEST_LENGTH])


def _own() -> Iterator[tuple[str, Path]]:
    """This program, which may be installed from a checkout."""
    root = Path(bullpen.__file__).parent
    for file in root.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            yield f"bullpen/{file.relative_to(root)}", file


def _needed() -> Iterator[tuple[str, Path]]:
    for found in _distributions():
        for file in found.files or ():
            path = Path(str(found.locate_file(file)))
            inside = ".." not in file.parts and file.suffix not in (".pyc", ".pth")
            own = found.name == bullpen.__name__ and ".dist-info" not in file.parts[0]
            if inside and not own and path.is_file():
                yield str(file), path


def _distributions() -> Iterator[metadata.Distribution]:
    """Our distribution, those of drivers, and everything that they need."""
    drivers = (entry.dist for entry in metadata.entry_points(group=DRIVERS))
    wanted = [bullpen.__name__, *(found.name for found in drivers if found is not None)]
    seen = set(LEFT_OUT)
    while wanted:
        name = _normal(wanted.pop())
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform, or an extra that is not installed
        yield found
        wanted.extend(_requirements(found))


def _requirements(found: metadata.Distribution) -> Iterator[str]:
    """The names of what a distribution needs; not of its extras."""
    for requirement in found.requires or ():
        name, _, marker = requirement.partition(";")
        if "extra" not in marker:
            yield re.split(r"[^A-Za-z0-9._-]", name.strip(), maxsplit=1)[0]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
