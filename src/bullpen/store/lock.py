"""Exclusive ownership of a file, without waiting.

A file beside the database is locked while the store is open. The database itself is not
used for this: closing any handle to it would drop the locks SQLite holds on it in this
process. The lock is released when its process ends, also after ``kill -9``, unless a forked
child that never called exec outlives it. The file is kept, because removing it would allow
two owners.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from bullpen.errors import Refused


class FileLock:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    @classmethod
    def take(cls, path: Path) -> FileLock:
        """Lock ``path`` or raise ``Refused`` naming the process that holds it."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(handle, 20).decode(errors="replace").strip()
            os.close(handle)
            raise Refused(
                f"{path.with_suffix('')} is in use by process {owner or 'unknown'}; "
                "stop that one first, or choose another data directory",
            ) from None
        # The pid is informational; a full disk must not prevent the lock.
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
        return cls(handle)

    def release(self) -> None:
        os.close(self._handle)
