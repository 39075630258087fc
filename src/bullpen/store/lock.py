"""One owner per file, found out at once.

A file beside the database is locked for as long as the store is open. The
database itself is not used for this: closing any handle to it would drop the
locks SQLite holds on it in this process. The lock goes with its process, also
after ``kill -9``, unless a child that was forked and never executed anything
else outlives it. The file stays, because removing it would let two owners in.
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
        """Own ``path`` or raise ``Refused`` naming the process that does."""
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
        # A courtesy to whoever comes second; a full disk must not keep us out.
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
        return cls(handle)

    def release(self) -> None:
        os.close(self._handle)
