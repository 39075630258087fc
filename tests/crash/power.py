"""A disk whose power can be cut: only what was synced is sure to survive.

``kill -9`` leaves the operating system's caches alone, so it cannot show a
missing sync. This file system keeps, beside each real file, what of it has been
synced. A power cut keeps that plus any part of what was written since.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import apsw

SECTOR = 512


@dataclass(frozen=True)
class Written:
    offset: int
    data: bytes

    def apply(self, image: bytearray) -> None:
        end = self.offset + len(self.data)
        image.extend(bytes(max(0, end - len(image))))
        image[self.offset : end] = self.data


@dataclass(frozen=True)
class Truncated:
    size: int

    def apply(self, image: bytearray) -> None:
        del image[self.size :]


@dataclass
class Platter:
    """One file: what is safe, and what is still on its way."""

    synced: bytearray
    unsynced: list[Written | Truncated] = field(default_factory=list)

    def sync(self) -> None:
        for operation in self.unsynced:
            operation.apply(self.synced)
        self.unsynced.clear()

    def after_a_cut(self, rng: random.Random) -> bytes:
        image = bytearray(self.synced)
        share = rng.choice((0.0, 0.5, 0.9, 1.0))
        for operation in self.unsynced:
            if rng.random() < share:
                _torn(operation, rng).apply(image)
        return bytes(image)


class PowerDisk(apsw.VFS):
    def __init__(self, name: str) -> None:
        super().__init__(name, base="")
        self.name = name
        self.lock = Lock()
        self.platters: dict[str, Platter] = {}

    def cut(self, directory: Path, rng: random.Random) -> None:
        """Put what would be left of each file into a directory."""
        with self.lock:
            for name, platter in self.platters.items():
                (directory / Path(name).name).write_bytes(platter.after_a_cut(rng))

    def xOpen(  # noqa: N802
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        assert name is not None
        filename = name if isinstance(name, str) else name.filename()
        file = Path(filename)
        with self.lock:
            content = file.read_bytes() if file.exists() else b""
            platter = self.platters.setdefault(filename, Platter(bytearray(content)))
        return _File(platter, self.lock, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        with self.lock:
            super().xDelete(filename, syncdir)
            self.platters.pop(filename, None)


class _File(apsw.VFSFile):
    def __init__(
        self, platter: Platter, lock: Lock, name: str | apsw.URIFilename, flags: list[int]
    ) -> None:
        self._platter = platter
        self._lock = lock
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        with self._lock:
            super().xWrite(data, offset)
            self._platter.unsynced.append(Written(offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        with self._lock:
            super().xTruncate(newsize)
            self._platter.unsynced.append(Truncated(newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802
        with self._lock:
            super().xSync(flags)
            self._platter.sync()


def _torn(operation: Written | Truncated, rng: random.Random) -> Written | Truncated:
    """Now and then only the first sectors of a write arrive."""
    if isinstance(operation, Truncated) or rng.random() < 0.8:
        return operation
    sectors = len(operation.data) // SECTOR
    return Written(operation.offset, operation.data[: SECTOR * rng.randint(0, sectors)])
