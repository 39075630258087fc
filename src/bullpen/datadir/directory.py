"""The data directory: its ownership, exclusive access to it, and durable writes of small files.

A directory is ours when it is empty, or when it contains our marker file. Any other
directory is refused and left unchanged. One process holds it at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from bullpen.errors import Refused

FORMAT = 1
MARKER = "bullpen.json"

SECRET = 0o600
PUBLIC = 0o644


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below the data directory."""

    root: Path

    @property
    def database(self) -> Path:
        return self.root / "state.db"

    @property
    def backups(self) -> Path:
        return self.root / "backups"

    @property
    def restoring(self) -> Path:
        """Exists while a backup is being restored."""
        return self.root / "state.db.restoring"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def marker(self) -> Path:
        return self.root / MARKER

    @property
    def lab_identity(self) -> Path:
        return self.root / "lab.json"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def tokens(self) -> Path:
        return self.root / "auth" / "tokens.json"

    @property
    def signing_keys(self) -> Path:
        return self.root / "auth" / "signing-keys.json"

    @property
    def stream_key(self) -> Path:
        return self.root / "auth" / "stream.key"

    @property
    def audit(self) -> Path:
        """Directory of the audit log."""
        return self.root / "audit"

    @property
    def history(self) -> Path:
        """The sizes of pools over time."""
        return self.root / "history.json"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def kubeconfig_view(self) -> Path:
        return self.root / "kubeconfig-view"

    @property
    def client_config(self) -> Path:
        return self.root / "clients" / "default.yaml"

    @property
    def endpoints(self) -> Path:
        return self.root / "endpoints.json"


class DataDirectory:
    """Exclusive use of a data directory, from ``open`` to ``close``."""

    def __init__(self, root: Path, lock_handle: int) -> None:
        self.layout = Layout(root)
        self._lock_handle = lock_handle

    @classmethod
    def open(cls, root: Path) -> DataDirectory:
        """Lock the directory; raises ``Refused`` if it is foreign, newer, or locked."""
        root = root.resolve()
        layout = Layout(root)
        _check_ours(layout)
        handle = _take_lock(layout)
        try:
            if not layout.marker.exists():
                write_atomically(layout.marker, json.dumps({"format": FORMAT}) + "\n", mode=PUBLIC)
        except Refused:
            os.close(handle)
            raise
        return cls(root, handle)

    def close(self) -> None:
        """Unlock it. Files that are valid only while running are removed first."""
        self.layout.endpoints.unlink(missing_ok=True)
        os.ftruncate(self._lock_handle, 0)
        os.close(self._lock_handle)

    def __enter__(self) -> DataDirectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_ours(layout: Layout) -> None:
    root = layout.root
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = {entry.name for entry in root.iterdir()}
    except OSError as error:
        raise Refused(f"{root} cannot be used as a data directory: {error.strerror}") from None
    if MARKER in found:
        _check_marker(layout)
    elif found - {"lock"}:
        raise Refused(
            f"{root} is not empty and has no {MARKER}: it belongs to something else, or its"
            " set-up was interrupted. Choose another --data, or empty it yourself"
        )


def _check_marker(layout: Layout) -> None:
    try:
        marker = json.loads(layout.marker.read_text())
        version = marker["format"]
    except (OSError, ValueError, KeyError, TypeError):
        raise Refused(
            f"{layout.marker} cannot be read: this is not a data directory of Bullpen, or it is"
            " damaged. It was left untouched; restore it from a backup or choose another --data"
        ) from None
    if version != FORMAT:
        raise Refused(
            f"{layout.root} has format {version}, this version reads format {FORMAT};"
            " use the version of Bullpen that wrote it"
        )


def _take_lock(layout: Layout) -> int:
    try:
        handle = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise Refused(f"{layout.lock} cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
        os.close(handle)
        raise Refused(
            f"{layout.root} is in use by {holder}; stop it first or choose another --data"
        ) from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"bullpen up, pid {os.getpid()}\n".encode(), 0)
    return handle


def write_atomically(path: Path, content: str | bytes, *, mode: int) -> None:
    """Replace ``path`` durably: a crash leaves the old or the new file, never a part.

    The mode applies from the first byte on. Raises ``Refused``.
    """
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
