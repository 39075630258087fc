"""Writing small files so that a crash leaves the old one or the new one, never half."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

SECRET = 0o600
PUBLIC = 0o644


def write_atomically(path: Path, content: str | bytes, *, mode: int) -> None:
    """Replace ``path`` durably. The mode holds from the first byte on."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
