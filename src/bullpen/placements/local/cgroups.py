"""Control groups: how much memory, how many processes and how much CPU an instance gets.

Both versions are supported: version 1 with a tree for each controller, version 2 if its
controllers are enabled for the service's own group, or if systemd delegated that group to the
service (``Delegate=yes``) and it can enable them itself.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

CONTROLLERS = ("memory", "pids", "cpu")
CPU_PERIOD = 100_000
MOUNTS = Path("/proc/self/mountinfo")
MEMBERSHIP = Path("/proc/self/cgroup")
PROCESSES = "cgroup.procs"
REMOVE_TRIES_MAX = 5
REMOVE_PAUSE_SECONDS = 0.002
"""A group is busy until the kernel has released the last process in it."""
SUBTREE = "cgroup.subtree_control"

OWN = "service"
"""The service's group below one that was delegated to it; beside it are those of instances."""

DELEGATION_MARKS = ("user.delegate", "trusted.delegate")
"""Extended attributes that systemd sets on a group that it delegates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of an instance; 0 for no limit."""

    memory_bytes: int
    processes: int
    cpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """The service's own groups, by controller."""

    version: int
    places: Mapping[str, Path]


class CgroupsMissing(Exception):
    """Why the service cannot use control groups on this host."""


def find(*, mounts: str | None = None, membership: str | None = None) -> Trees:
    """The groups of this process. Raises ``CgroupsMissing``."""
    mounts = MOUNTS.read_text() if mounts is None else mounts
    membership = MEMBERSHIP.read_text() if membership is None else membership
    own = _own(membership)
    found: dict[str, Path] = {}
    for root, point, kind, names in _mounted(mounts):
        if kind == "cgroup":
            for name in set(CONTROLLERS) & names & own.keys():
                found[name] = _below(point, root, own[name])
        elif kind == "cgroup2" and "" in own:
            place = _below(point, root, own[""])
            place = place.parent if place.name == OWN else place
            for name in _enabled(place):
                found.setdefault(name, place)
    absent = [name for name in CONTROLLERS if name not in found]
    if absent:
        raise CgroupsMissing(
            f"the controllers {', '.join(absent)} are not available to this process"
        )
    return Trees(version=2 if len(set(found.values())) == 1 else 1, places=found)


def settle(*, mounts: str | None = None, membership: str | None = None) -> None:
    """Turn controllers on in a group of version 2 that systemd has delegated to this service.

    Such a group has processes or controllers for groups below it, never both, so everything in
    it moves to a group of its own first. Does nothing in any other group, which may have
    processes of others. Raises ``OSError``.
    """
    mounts = MOUNTS.read_text() if mounts is None else mounts
    membership = MEMBERSHIP.read_text() if membership is None else membership
    path = _own(membership).get("")
    for root, point, kind, _ in _mounted(mounts):
        if kind != "cgroup2" or path is None:
            continue
        place = _below(point, root, path)
        if _is_delegated(place) and not set(CONTROLLERS) <= _enabled(place):
            _move_down(place)
            _turn_on(place)


def _is_delegated(place: Path) -> bool:
    for mark in DELEGATION_MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(place, mark) == b"1":
                return True
    return False


def _move_down(place: Path) -> None:
    (place / OWN).mkdir(exist_ok=True)
    for process in (place / PROCESSES).read_text().split():
        with contextlib.suppress(ProcessLookupError):
            (place / OWN / PROCESSES).write_text(process)


def _turn_on(place: Path) -> None:
    (place / SUBTREE).write_text(" ".join(f"+{name}" for name in CONTROLLERS))


def _own(membership: str) -> dict[str, str]:
    """The path of this process by controller; version 2 has the empty name."""
    lines = [line.split(":", 2) for line in membership.splitlines() if line.count(":") >= 2]
    return {name: path for _, names, path in lines for name in names.split(",")}


def _mounted(mounts: str) -> Iterator[tuple[str, str, str, set[str]]]:
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup"):
            root, point = before.split()[3:5]
            kind, _, options = after.split()[:3]
            yield root, point, kind, set(options.split(","))


def _below(point: str, root: str, path: str) -> Path:
    inside = path.removeprefix(root) if root != "/" else path
    return Path(point) / inside.lstrip("/")


def _enabled(place: Path) -> set[str]:
    with contextlib.suppress(OSError):
        words = (place / SUBTREE).read_text().split()
        return set(words) & set(CONTROLLERS)
    return set()


class Cgroups:
    """The groups of one service's instances."""

    def __init__(self, trees: Trees, data: Path) -> None:
        self._version = trees.version
        name = f"bullpen-{hashlib.sha256(str(data).encode()).hexdigest()[:12]}"
        self._parents = {controller: place / name for controller, place in trees.places.items()}

    def prepare(self) -> None:
        """Create the parent groups of the instances. Raises ``OSError`` if not permitted."""
        for place in self._directories():
            place.mkdir(exist_ok=True)
            if self._version == 2:
                _turn_on(place)

    def make(self, name: str, limits: Limits) -> tuple[str, ...]:
        """Create the groups of one instance; returns their paths."""
        self.prepare()
        for controller, parent in self._parents.items():
            group = parent / name
            group.mkdir(exist_ok=True)
            for file, value in self._settings(controller, limits):
                (group / file).write_text(value)
        return tuple(str(parent / name) for parent in self._directories())

    def remove_others(self, names: Iterable[str]) -> None:
        """Remove the groups of instances that are gone."""
        kept = set(names)
        for parent in self._directories():
            # The service that this one replaces may just be removing them.
            with contextlib.suppress(FileNotFoundError):
                for group in parent.iterdir():
                    if group.is_dir() and group.name not in kept:
                        remove((str(group),))

    def close(self) -> None:
        self.remove_others(())
        remove(map(str, self._directories()))

    def _directories(self) -> list[Path]:
        return list(dict.fromkeys(self._parents.values()))

    def _settings(self, controller: str, limits: Limits) -> Iterator[tuple[str, str]]:
        quota = int(limits.cpus * CPU_PERIOD)
        if controller == "memory" and limits.memory_bytes:
            name = "memory.max" if self._version == 2 else "memory.limit_in_bytes"
            yield name, str(limits.memory_bytes)
        if controller == "pids" and limits.processes:
            yield "pids.max", str(limits.processes)
        if controller == "cpu" and limits.cpus and self._version == 2:
            yield "cpu.max", f"{quota} {CPU_PERIOD}"
        elif controller == "cpu" and limits.cpus:
            yield "cpu.cfs_quota_us", str(quota)


def join(groups: Iterable[str]) -> None:
    """Move this process, and so all its children, into these groups."""
    for group in groups:
        (Path(group) / PROCESSES).write_text(str(os.getpid()))


def remove(groups: Iterable[str]) -> None:
    """Remove empty groups; a group that stays busy is removed at the next start."""
    for group in groups:
        for _ in range(REMOVE_TRIES_MAX):
            try:
                Path(group).rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY:
                    break
                time.sleep(REMOVE_PAUSE_SECONDS)
            else:
                break
