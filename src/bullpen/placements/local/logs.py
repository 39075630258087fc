"""A log that never grows beyond twice its limit, and keeps the newest lines."""

from __future__ import annotations

import os
from pathlib import Path

LOG_BYTES_MAX = 1 << 20
OLDER = ".1"


class RotatedLog:
    """Appends to ``path``; when that is full it becomes ``path.1`` and a new file begins."""

    def __init__(self, path: Path, *, bytes_max: int = LOG_BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._open()

    def write(self, data: bytes) -> None:
        if self._size + len(data) > self._bytes_max and self._size:
            self.close()
            self._path.replace(self._path.with_name(self._path.name + OLDER))
            self._open()
        os.write(self._handle, data[-self._bytes_max :])
        self._size += len(data)

    def close(self) -> None:
        os.close(self._handle)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._handle = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._handle).st_size
