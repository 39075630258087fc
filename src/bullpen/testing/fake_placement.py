"""A placement without processes, for tests in virtual time: exporters are entries of a dict.

It outlives the provisioners that use it, as the exporters of a host outlive a service that is
killed and started again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from bullpen.core.targets.instances import ExitReason, Instance, InstancePhase
from bullpen.errors import Refused, Unreachable
from bullpen.placements.base import Key, Listener, Site, Workload


class FakePlacement:
    """Exporters register as soon as they are started."""

    def __init__(self, pause: Callable[[], Awaitable[None]]) -> None:
        """``pause`` is awaited before and after every effect."""
        self.silent = False
        self.exporters: dict[Key, Instance] = {}
        self.granted: dict[Key, Mapping[str, bytes]] = {}
        """What each exporter was granted last."""

        self._pause = pause
        self._listeners: list[Listener] = []

    async def start(self, workload: Workload) -> Instance:
        await self._reached()
        workload.export(Site(artifacts={}))
        started = Instance(
            key=workload.key,
            owner_uid=workload.spec.owner_uid,
            provisioner=workload.spec.profile.provisioner,
            phase=InstancePhase.RUNNING,
        )
        found = self.exporters.setdefault(workload.key, started)
        self.granted[workload.key] = workload.granted
        await self._pause()
        self._tell(workload.key)
        return found

    async def stop(self, key: Key) -> None:
        await self._reached()
        self.exporters.pop(key, None)
        await self._pause()
        self._tell(key)

    async def retire(self, key: Key) -> None:
        await self._reached()
        self.end(key, ExitReason.COMPLETED)

    async def change_disks(self, workload: Workload) -> None:
        raise Refused("there are no disks")

    async def update_credentials(self, key: Key, credentials: Mapping[str, bytes]) -> None:
        """Exporters that do not exist read nothing."""

    async def grant(self, key: Key, files: Mapping[str, bytes]) -> None:
        await self._reached()
        if key in self.exporters:
            self.granted[key] = files

    async def observe_all(self) -> tuple[Instance, ...]:
        """Answers from memory, as a placement does whose host is unreachable."""
        return tuple(self.exporters[key] for key in sorted(self.exporters))

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def end(self, key: Key, reason: ExitReason) -> None:
        """The exporter exits by itself."""
        found = self.exporters.get(key)
        if found is not None and found.up:
            exited = replace(found, phase=InstancePhase.EXITED, reason=reason, detail="ended")
            self.exporters[key] = exited
            self._tell(key)

    async def _reached(self) -> None:
        await self._pause()
        if self.silent:
            raise Unreachable("the placement does not answer")

    def _tell(self, key: Key) -> None:
        for listener in self._listeners:
            listener(key)
