"""Paths: one directory per instance, and short ones for its sockets.

Disks, logs and secrets live below the data directory. Sockets cannot: the path of a Unix
socket is limited to about a hundred bytes and a data directory may be anywhere, so sockets
live in a directory of their own below the system's temporary directory.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TypeVar

import msgspec

from bullpen.placements.base import Key, Workload
from bullpen.placements.local.processes import ProcessId

PRIVATE = 0o700
SECRET = 0o600
GROUP_ENTERS = 0o750
GROUP_READS = 0o640
"""For the instance's own group, which has no other members."""

NAME_LENGTH_MAX = 150
"""Longer names are truncated and made unique by a digest: file names hold 255 bytes."""

STATE = "instance.json"
PROCESS = "process.json"
LOG = "log"
TEMPORARY = "tmp"
CREDENTIALS = "credentials"
GRANTED = "granted"
ATTACHED = "disks"
"""Directory of an instance with links to its lasting disks."""

ZYGOTE = ".zygote.json"
ZYGOTE_LOG = ".zygote.log"

S = TypeVar("S", bound=msgspec.Struct)
OnError = tuple[type[BaseException], BaseException, TracebackType]


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What a later process must know about an instance. Contains no secrets."""

    key: Key
    owner_uid: str
    provisioner: str
    token: str
    memory_bytes: int
    cpus: float
    single_use: bool
    retain: bool
    keep: bool = False
    """A lasting machine: left as it is between leases."""

    user: int = 0
    """Uid it runs as; 0 for the service's own."""


class ZygoteState(msgspec.Struct, frozen=True, kw_only=True):
    """How a later process finds the zygote."""

    process: ProcessId
    runtime: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below a data directory."""

    data: Path

    @property
    def instances(self) -> Path:
        return self.data / "instances"

    @property
    def retained(self) -> Path:
        return self.data / "retained"

    @property
    def cache(self) -> Path:
        return self.data / "cache"

    @property
    def zygote(self) -> Path:
        return self.instances / ZYGOTE

    @property
    def zygote_log(self) -> Path:
        return self.instances / ZYGOTE_LOG

    def instance(self, key: Key) -> Path:
        return self.instances / directory_name(key)

    def log(self, key: Key) -> Path:
        """The instance's output; the older half is beside it, ending in ``.1``."""
        return self.instance(key) / LOG

    def retained_as(self, key: Key, now: datetime) -> Path:
        return self.retained / f"{directory_name(key)}-{now:%Y%m%dT%H%M%S.%fZ}"

    @property
    def disks(self) -> Path:
        return self.data / "disks"

    def disk(self, key: Key, uid: str) -> Path:
        """The content of a VirtualDisk. Another disk of the same name has another uid."""
        return self.disks / f"{directory_name(key)}~{uid}.qcow2"

    def attached(self, key: Key, file: str) -> Path:
        """The link to a lasting disk in the directory of the instance that has it."""
        return self.instance(key) / ATTACHED / file

    def kept(self) -> tuple[Path, ...]:
        """The retained directories of removed instances, by name."""
        return tuple(sorted(self.retained.iterdir())) if self.retained.exists() else ()

    def found(self) -> Iterator[Path]:
        """The directories of all current and past instances."""
        if self.instances.exists():
            yield from sorted(path for path in self.instances.iterdir() if path.is_dir())


def directory_name(key: Key) -> str:
    """``namespace.name``; a namespace contains no dots, so names are unique."""
    name = ".".join(key)
    if len(name) <= NAME_LENGTH_MAX:
        return name
    return f"{name[:NAME_LENGTH_MAX]}~{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def runtime_name(token: str) -> str:
    """Short, because sockets are created below it."""
    return hashlib.sha256(token.encode()).hexdigest()[:10]


def make_runtime(base: Path) -> Path:
    """A new directory for sockets that only our user can enter."""
    return Path(tempfile.mkdtemp(prefix="bullpen-", dir=base))


def state_of(workload: Workload, *, token: str, user: int = 0) -> State:
    spec = workload.spec
    return State(
        key=spec.key,
        owner_uid=spec.owner_uid,
        provisioner=spec.profile.provisioner,
        token=token,
        memory_bytes=workload.needs.memory_bytes,
        cpus=workload.needs.cpus,
        single_use=spec.profile.single_use,
        retain=spec.profile.retain,
        keep=spec.profile.keep,
        user=user,
    )


def prepare(
    directory: Path,
    state: State,
    files: Mapping[str, bytes],
    granted: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Create an instance's directory. Files of an earlier one of this name are removed.

    The service keeps the ownership of the directory and its records, whatever user the instance
    runs as: the instance may enter it, write to temporary directories and read its credentials.
    """
    wipe(directory)
    directory.mkdir(mode=PRIVATE, parents=True)
    write(directory / STATE, msgspec.json.encode(state))
    (directory / TEMPORARY).mkdir(mode=PRIVATE)
    (directory / CREDENTIALS).mkdir(mode=PRIVATE)
    (directory / GRANTED).mkdir(mode=PRIVATE)
    if state.user:
        os.chown(directory / TEMPORARY, state.user, state.user)
        for path in (directory, directory / CREDENTIALS, directory / GRANTED):
            os.chown(path, 0, state.user)
            path.chmod(GROUP_ENTERS)
    put_credentials(directory, state, files)
    put_granted(directory, state, granted)


def put_granted(directory: Path, state: State, files: Mapping[str, bytes]) -> None:
    """Write what a provider grants an instance, which reads each file in its old or new version."""
    for name, content in files.items():
        write(directory / GRANTED / name, content, group=state.user)


def put_credentials(directory: Path, state: State, files: Mapping[str, bytes]) -> None:
    """Write the credentials of an instance, and remove those that it no longer has.

    An instance that runs reads each of them in its old or its new version.
    """
    place = directory / CREDENTIALS
    for name, content in files.items():
        write(place / name, content, group=state.user)
    for path in place.iterdir():
        if path.name not in files:
            path.unlink()


def attach(directory: Path, state: State, files: Iterable[Path]) -> None:
    """Link lasting disks into the directory of the instance that has them.

    The instance sees nothing else of the data directory, and a link is not affected when the
    instance's directory is removed.
    """
    place = directory / ATTACHED
    place.mkdir(mode=PRIVATE, exist_ok=True)
    if state.user:
        os.chown(place, 0, state.user)
        place.chmod(GROUP_ENTERS)
    for file in files:
        link = place / file.name
        if not link.exists():
            os.link(file, link)
        if state.user:
            os.chown(link, state.user, state.user)


def detach(directory: Path, kept: Iterable[Path]) -> None:
    """Remove the links to all other disks: the instance no longer has them."""
    names = {file.name for file in kept}
    for link in (directory / ATTACHED).iterdir():
        if link.name not in names:
            link.unlink(missing_ok=True)


def read_state(directory: Path) -> State | None:
    """None if it was never completely written."""
    return _read(directory / STATE, State)


def read_process(directory: Path) -> ProcessId | None:
    """None if it was never started."""
    return _read(directory / PROCESS, ProcessId)


def read_zygote(layout: Layout) -> ZygoteState | None:
    return _read(layout.zygote, ZygoteState)


def _read(path: Path, kind: type[S]) -> S | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def write(path: Path, content: bytes, *, group: int = 0) -> None:
    """Write atomically; readable only for us and a group, if one is given."""
    temporary = path.with_name(f".{path.name}.new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, SECRET)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        if group:
            os.fchown(file.fileno(), 0, group)
            os.fchmod(file.fileno(), GROUP_READS)
    temporary.replace(path)


def wipe(directory: Path) -> None:
    """Remove it recursively, even if another process does too; absent is a success.

    Also directories that their owner may not enter, such as those of containers.
    """
    try:
        shutil.rmtree(directory, onerror=_unless_absent)
    except PermissionError:
        _open_up(directory)
        shutil.rmtree(directory, onerror=_unless_absent)


def _open_up(directory: Path) -> None:
    """Let the owner enter every directory below. No process of the instance runs any more."""
    directory.chmod(PRIVATE)
    for place, names, _ in os.walk(directory):
        for path in (Path(place) / name for name in names):
            if not path.is_symlink():
                path.chmod(PRIVATE)


def _unless_absent(_function: object, _path: str, raised: OnError) -> None:
    if not isinstance(raised[1], FileNotFoundError):
        raise raised[1]


def keep_evidence(directory: Path) -> None:
    """After an exit: keep the log and the state, remove all else."""
    evidence = {STATE, PROCESS, LOG, f"{LOG}.1"}
    for path in directory.iterdir() if directory.exists() else ():
        if path.name in evidence:
            continue
        if path.is_dir() and not path.is_symlink():
            wipe(path)
        else:
            path.unlink(missing_ok=True)


def retain(directory: Path, destination: Path) -> None:
    """Move it away without its secrets."""
    wipe(directory / CREDENTIALS)
    wipe(directory / GRANTED)
    destination.parent.mkdir(mode=PRIVATE, exist_ok=True)
    directory.rename(destination)
