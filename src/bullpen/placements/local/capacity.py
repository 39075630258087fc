"""Whether one more instance fits on this host. The decision is pure; reading is separate."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bullpen.core.targets.backends import HostLoad
from bullpen.placements.base import Needs

INSTANCES_MAX = 500
MEMORY_SHARE = 0.9
"""The rest is for the system and for the service."""

CPU_SHARES_PER_CORE = 8.0
"""Targets are mostly idle; this many virtual CPUs share one real CPU."""

DISK_BYTES_MIN = 32 << 20
"""Left free on the disk of the instances: an instance started without it fails halfway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that all instances together may take."""

    instances: int
    memory_bytes: int
    cpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The resources promised to running and starting instances."""

    instances: int = 0
    memory_bytes: int = 0
    cpus: float = 0.0

    def plus(self, memory_bytes: int, cpus: float) -> Usage:
        return Usage(
            instances=self.instances + 1,
            memory_bytes=self.memory_bytes + memory_bytes,
            cpus=self.cpus + cpus,
        )


def shortage(needs: Needs, used: Usage, limits: Limits, *, free_bytes: int, disk_bytes: int) -> str:
    """Why ``needs`` do not fit, in words; empty if they do.

    Memory is checked twice: against what was promised, because an instance that just started
    has not used its share yet, and against what is free, because other programs use this host
    too.
    """
    after = used.plus(needs.memory_bytes, needs.cpus)
    if after.instances > limits.instances:
        return f"{used.instances} of at most {limits.instances} instances are running"
    if after.memory_bytes > limits.memory_bytes:
        promised, most = _mib(used.memory_bytes), _mib(limits.memory_bytes)
        return f"it needs {_mib(needs.memory_bytes)} of memory, {promised} of {most} are taken"
    if after.cpus > limits.cpus:
        return f"it needs {needs.cpus:g} CPUs, {used.cpus:g} of {limits.cpus:g} are taken"
    if needs.memory_bytes > free_bytes:
        return f"it needs {_mib(needs.memory_bytes)} of memory, {_mib(free_bytes)} are free"
    if disk_bytes < DISK_BYTES_MIN:
        return f"its disk has {_mib(disk_bytes)} left, at least {_mib(DISK_BYTES_MIN)} must be free"
    return ""


def _mib(amount: int) -> str:
    return f"{amount >> 20} MiB"


def host_limits(*, instances: int = INSTANCES_MAX) -> Limits:
    """The resources of this machine, less a reserve."""
    return Limits(
        instances=instances,
        memory_bytes=int(_meminfo("MemTotal") * MEMORY_SHARE),
        cpus=(os.cpu_count() or 1) * CPU_SHARES_PER_CORE,
    )


def host_load() -> HostLoad:
    """How busy this machine has been in the last minute, and its memory now."""
    processes, _, _ = os.getloadavg()
    available = _meminfo("MemAvailable") / _meminfo("MemTotal")
    return HostLoad(
        cpu=round(100 * processes / (os.cpu_count() or 1)), memory=round(100 * (1 - available))
    )


def free_memory() -> int:
    """Bytes of memory available without swapping."""
    return _meminfo("MemAvailable")


def free_disk(path: Path) -> int:
    """Bytes of free disk space below ``path``."""
    return shutil.disk_usage(path).free


def _meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        field, _, value = line.partition(":")
        if field == name:
            return int(value.split()[0]) * 1024
    raise AssertionError(f"/proc/meminfo has no {name}")


def missing_programs(needs: Needs, find: Callable[[str], str | None] = shutil.which) -> str:
    """Which programs of a workload are not installed, and how to install them; or empty."""
    missing = [program for program in needs.programs if find(program.name) is None]
    if not missing:
        return ""
    names = ", ".join(program.name for program in missing)
    packages = " ".join(dict.fromkeys(program.package for program in missing))
    verb = "is" if len(missing) == 1 else "are"
    return f"{names} {verb} not installed on this machine; apt-get install {packages}"
