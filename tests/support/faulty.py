"""A file system that counts, and that fails when told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw


class Disk(apsw.VFS):
    """The operating system's files, through a place where faults can be put.

    ``before_read``, ``before_write`` and ``before_sync`` are called with the kind of file
    (``db`` or ``wal``) and may raise.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, base="")
        self.name = name
        self.syncs: list[str] = []
        self.reads = 0
        self.before_read: Callable[[str], None] = _nothing
        self.before_write: Callable[[str], None] = _nothing
        self.before_sync: Callable[[str], None] = _nothing

    def xOpen(  # noqa: N802
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        assert name is not None
        return _File(self, name, flags)

    def heal(self) -> None:
        self.before_read = self.before_write = self.before_sync = _nothing


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: str | apsw.URIFilename, flags: list[int]) -> None:
        self._disk = disk
        filename = name if isinstance(name, str) else name.filename()
        self._kind = "wal" if filename.endswith("-wal") else "db"
        super().__init__("", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        self._disk.before_read(self._kind)
        self._disk.reads += 1
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._disk.before_write(self._kind)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.before_sync(self._kind)
        self._disk.syncs.append(self._kind)
        super().xSync(flags)


def _nothing(kind: str) -> None:
    """No fault."""


def full(kind: str) -> None:
    raise apsw.FullError(f"no space for {kind}")


def broken(kind: str) -> None:
    raise apsw.IOError(f"cannot reach {kind}")
