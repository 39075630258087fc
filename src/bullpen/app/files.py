"""Writes small files so that a crash leaves either the old or the new file, never a part."""

from __future__ import annotations

import os
from pathlib import Path

from bullpen.errors import Refused

SECRET = 0o600
PUBLIC = 0o644


def write_atomically(path: Path, content: str | bytes, *, mode: int) -> None:
    """Replace ``path`` durably. The mode applies from the first byte on. Raises ``Refused``."""
    data = content.encode() if isinstance(content, str) else content
    # The name is constant, so that the next attempt replaces what a crash left behind.
    temporary = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        _write(temporary, data, mode)
        temporary.replace(path)
        _sync_directory(path.parent)
    except OSError as error:
        raise Refused(
            f"{path} cannot be written: {error.strerror};"
            " check that its directory is writable and has space left"
        ) from error


def _write(path: Path, data: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
