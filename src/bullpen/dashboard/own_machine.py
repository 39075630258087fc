"""The machine of the service, which runs the instances that no provider has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bullpen.core.targets.backends import HostLoad
from bullpen.dashboard.rows import Row
from bullpen.dashboard.target_logs import Key
from bullpen.placements.local.capacity import Limits, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMachine:
    log: Callable[[Key], Path]
    """The file with the log of an instance."""

    capacity: Callable[[], tuple[Usage, Limits]]
    load: Callable[[], HostLoad]

    def row(self) -> Row:
        """What its page shows."""
        (used, limits), load = self.capacity(), self.load()
        return {
            "instances": used.instances,
            "maxInstances": limits.instances,
            "memoryBytes": used.memory_bytes,
            "maxMemoryBytes": limits.memory_bytes,
            "cpus": used.cpus,
            "maxCpus": limits.cpus,
            "cpu": load.cpu,
            "memory": load.memory,
        }
